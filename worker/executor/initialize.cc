#include "worker/executor/initialize.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cpu/convert.h"
#include "ops/kernel/philox.h"

namespace espalier {
namespace {

// The "step" word of the counter: no training step gets there, so dropout never sees these numbers.
constexpr uint64_t kInitializationStep = ~uint64_t{0};

double HalfWidthGlorot(const Dims& dims) {
  if (dims.empty()) return std::sqrt(3.0);
  if (dims.size() == 1) return std::sqrt(3.0 / static_cast<double>(dims[0]));
  double spatial = 1;
  for (size_t d = 2; d < dims.size(); ++d) spatial *= static_cast<double>(dims[d]);
  const double fans = static_cast<double>(dims[0] + dims[1]) * spatial;
  return std::sqrt(6.0 / fans);
}

double UnitOf(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

// Two words of randomness per element.
float Draw(const proto::Initializer& initializer, double width, uint64_t key, uint64_t element) {
  const PhiloxBlock block = Philox(key, element >> 1, kInitializationStep);
  const uint32_t* words = block.word + 2 * (element & 1);
  if (initializer.kind() == proto::Initializer::NORMAL) {
    const double radius = std::sqrt(-2.0 * std::log(UnitOf(words[0])));
    return static_cast<float>(width * radius * std::cos(2.0 * std::numbers::pi * UnitOf(words[1])));
  }
  return static_cast<float>(width * (2.0 * UnitOf(words[0]) - 1.0));
}

}  // namespace

uint64_t NameHash(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

absl::Status Initialize(const proto::Initializer& initializer, const std::string& name,
                        uint64_t seed, const TensorSpec& spec, void* host) {
  const int64_t count = spec.num_elements();
  const bool constant = initializer.kind() == proto::Initializer::ZEROS ||
                        initializer.kind() == proto::Initializer::ONES;
  if (!IsFloat(spec.dtype)) {
    if (!constant) {
      return absl::InvalidArgumentError(absl::StrCat("parameter '", name, "' is ", Name(spec.dtype),
                                                     ": it can start at zeros or ones only"));
    }
    const bool one = initializer.kind() == proto::Initializer::ONES;
    std::memset(host, 0, static_cast<size_t>(spec.bytes()));
    const size_t size = SizeOf(spec.dtype);
    for (int64_t i = 0; one && i < count; ++i) static_cast<char*>(host)[i * size] = 1;
    return absl::OkStatus();
  }
  if (!std::isfinite(initializer.scale())) {
    return absl::InvalidArgumentError(
        absl::StrCat("initializer of '", name, "' has a scale that is no finite number"));
  }
  std::vector<float> values(static_cast<size_t>(count),
                            initializer.kind() == proto::Initializer::ONES ? 1.0f : 0.0f);
  if (!constant) {
    const double width = initializer.kind() == proto::Initializer::GLOROT_UNIFORM
                             ? HalfWidthGlorot(spec.global)
                             : initializer.scale();
    const uint64_t key = seed ^ (NameHash(name) * 0x9E3779B97F4A7C15ull);
    const int rank = static_cast<int>(spec.dims.size());
    Dims index(rank, 0);
    for (int64_t i = 0; i < count; ++i) {
      uint64_t element = 0;
      for (int d = 0; d < rank; ++d) {
        element = element * static_cast<uint64_t>(spec.global[d]) +
                  static_cast<uint64_t>(spec.offset[d] + index[d]);
      }
      values[i] = Draw(initializer, width, key, element);
      for (int d = rank - 1; d >= 0 && ++index[d] == spec.dims[d]; --d) index[d] = 0;
    }
  }
  FromF32(spec.dtype, values.data(), host, count);
  return absl::OkStatus();
}

}  // namespace espalier
