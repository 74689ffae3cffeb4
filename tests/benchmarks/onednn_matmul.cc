#include "tests/benchmarks/onednn_matmul.h"

#include <omp.h>

#include <dnnl.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"

namespace espalier {
namespace {

using dnnl::memory;

struct Types {
  memory::data_type a, b, c;
};

Types TypesOf(MatmulType type) {
  using Type = memory::data_type;
  switch (type) {
    case MatmulType::kF32:
      return {Type::f32, Type::f32, Type::f32};
    case MatmulType::kBf16:
      return {Type::bf16, Type::bf16, Type::f32};
    case MatmulType::kInt8:
      return {Type::u8, Type::s8, Type::s32};
  }
  return {};
}

// Fills with values like activations: zeros and denormals have other speeds.
void Fill(memory& to, dnnl::engine& engine, dnnl::stream& stream) {
  const memory::dims dims = to.get_desc().dims();
  memory plain({dims, memory::data_type::f32, memory::format_tag::ab}, engine);
  float* const data = static_cast<float*>(plain.get_data_handle());
  for (int64_t i = 0; i < dims[0] * dims[1]; ++i) data[i] = static_cast<float>(i % 97);
  dnnl::reorder(plain, to).execute(stream, plain, to);
  stream.wait();
}

}  // namespace

std::string Name(MatmulType type) {
  switch (type) {
    case MatmulType::kF32:
      return "f32";
    case MatmulType::kBf16:
      return "bf16";
    case MatmulType::kInt8:
      return "int8";
  }
  return "";
}

struct OneDnnMatmul::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul::primitive_desc chosen;
  dnnl::matmul product;
  memory a, b, c;
  double operations = 0;
  int threads = 1;
};

OneDnnMatmul::OneDnnMatmul(std::unique_ptr<State> state) : state_(std::move(state)) {}
OneDnnMatmul::OneDnnMatmul(OneDnnMatmul&&) noexcept = default;
OneDnnMatmul& OneDnnMatmul::operator=(OneDnnMatmul&&) noexcept = default;
OneDnnMatmul::~OneDnnMatmul() = default;

absl::StatusOr<std::optional<OneDnnMatmul>> OneDnnMatmul::Make(MatmulType type, int64_t m,
                                                               int64_t n, int64_t k, int threads) {
  omp_set_num_threads(threads);
  const Types types = TypesOf(type);
  auto state = std::make_unique<State>();
  state->operations =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  state->threads = threads;
  const dnnl::matmul::desc wanted({{m, k}, types.a, memory::format_tag::ab},
                                  {{k, n}, types.b, memory::format_tag::any},
                                  {{m, n}, types.c, memory::format_tag::ab});
  try {
    state->chosen = dnnl::matmul::primitive_desc(wanted, state->engine, /*allow_empty=*/true);
    if (!state->chosen || absl::StartsWith(state->chosen.impl_info_str(), "ref")) {
      return std::optional<OneDnnMatmul>();
    }
    state->product = dnnl::matmul(state->chosen);
    state->a = memory(state->chosen.src_desc(), state->engine);
    state->b = memory(state->chosen.weights_desc(), state->engine);
    state->c = memory(state->chosen.dst_desc(), state->engine);
    Fill(state->a, state->engine, state->stream);
    Fill(state->b, state->engine, state->stream);
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("oneDNN, ", Name(type), ": ", error.message));
  }
  return std::optional<OneDnnMatmul>(OneDnnMatmul(std::move(state)));
}

absl::StatusOr<double> OneDnnMatmul::Gflops() {
  omp_set_num_threads(state_->threads);
  std::vector<double> seconds;
  try {
    for (int i = 0; i < 12; ++i) {
      const double start = Seconds();
      state_->product.execute(
          state_->stream,
          {{DNNL_ARG_SRC, state_->a}, {DNNL_ARG_WEIGHTS, state_->b}, {DNNL_ARG_DST, state_->c}});
      state_->stream.wait();
      if (i > 1) seconds.push_back(Seconds() - start);
    }
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("oneDNN: ", error.message));
  }
  return state_->operations / Median(seconds) / 1e9;
}

}  // namespace espalier
