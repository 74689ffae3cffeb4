#include "ops/cpu/onednn/onednn.h"

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>

#include "ops/cpu/onednn/post_ops.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

using dnnl::memory;

void ActivateResult(const GemmSpec& spec, float* c) {
  if (spec.activation == Activation::kNone) return;
  if (spec.batch == 1 && spec.c.row_stride == spec.n) {
    return Activate(spec.activation, c, spec.m * spec.n);
  }
  for (int64_t i = 0; i < spec.batch * spec.m; ++i) {
    Activate(spec.activation, c + i / spec.m * spec.c.batch_stride + i % spec.m * spec.c.row_stride,
             spec.n);
  }
}

class EmptyGemm : public Gemm {
 public:
  explicit EmptyGemm(const GemmSpec& spec) : spec_(spec) {}
  size_t workspace_bytes() const override { return 0; }
  // Nothing to sum: C is the bias, or zero.
  std::string Run(const float*, const float*, const float* bias, float* c, void*) override {
    if (spec_.accumulate) return "";
    for (int64_t b = 0; b < spec_.batch; ++b) {
      for (int64_t i = 0; i < spec_.m; ++i) {
        float* row = c + b * spec_.c.batch_stride + i * spec_.c.row_stride;
        for (int64_t j = 0; j < spec_.n; ++j) row[j] = spec_.bias ? bias[j] : 0.0f;
      }
    }
    ActivateResult(spec_, c);
    return "";
  }

 private:
  GemmSpec spec_;
};

class OneDnnGemm : public Gemm {
 public:
  explicit OneDnnGemm(const GemmSpec& spec)
      : spec_(spec), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const bool batched = spec.batch > 1;
    const memory::desc a = Describe(batched, spec.batch, spec.m, spec.k, spec.a);
    const memory::desc b = Describe(batched, spec.batch, spec.k, spec.n, spec.b);
    const memory::desc c = Describe(batched, spec.batch, spec.m, spec.n, spec.c);
    memory::desc bias;
    if (spec.bias) {
      bias = memory::desc(batched ? memory::dims{1, 1, spec.n} : memory::dims{1, spec.n},
                          memory::data_type::f32,
                          batched ? memory::dims{spec.n, spec.n, 1} : memory::dims{spec.n, 1});
    }
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::post_ops post;
    if (spec.accumulate) post.append_sum(1.0f);
    AppendActivation(spec.activation, &post);
    attributes.set_post_ops(post);
    const dnnl::matmul::desc problem =
        spec.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc chosen(problem, attributes, engine_);
    primitive_ = dnnl::matmul(chosen);
    scratch_bytes_ = chosen.scratchpad_desc().get_size();
    a_ = memory(a, engine_, nullptr);
    b_ = memory(b, engine_, nullptr);
    c_ = memory(c, engine_, nullptr);
    scratch_ = memory(chosen.scratchpad_desc(), engine_, nullptr);
    arguments_ = {{DNNL_ARG_SRC, a_},
                  {DNNL_ARG_WEIGHTS, b_},
                  {DNNL_ARG_DST, c_},
                  {DNNL_ARG_SCRATCHPAD, scratch_}};
    if (spec.bias) {
      bias_ = memory(bias, engine_, nullptr);
      arguments_[DNNL_ARG_BIAS] = bias_;
    }
  }

  size_t workspace_bytes() const override { return scratch_bytes_; }

  std::string Run(const float* a, const float* b, const float* bias, float* c,
                  void* workspace) override {
    try {
      a_.set_data_handle(const_cast<float*>(a));
      b_.set_data_handle(const_cast<float*>(b));
      c_.set_data_handle(c);
      if (bias_) bias_.set_data_handle(const_cast<float*>(bias));
      if (scratch_bytes_ > 0) scratch_.set_data_handle(workspace);
      primitive_.execute(stream_, arguments_);
      stream_.wait();
      if (!IsPostOp(spec_.activation)) ActivateResult(spec_, c);
      return "";
    } catch (const dnnl::error& error) {
      return std::string("oneDNN matmul failed: ") + error.what();
    }
  }

 private:
  static memory::desc Describe(bool batched, int64_t batch, int64_t rows, int64_t columns,
                               const MatrixLayout& layout) {
    if (!batched) {
      return memory::desc({rows, columns}, memory::data_type::f32,
                          {layout.row_stride, layout.column_stride});
    }
    return memory::desc({batch, rows, columns}, memory::data_type::f32,
                        {layout.batch_stride, layout.row_stride, layout.column_stride});
  }

  GemmSpec spec_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  size_t scratch_bytes_ = 0;
  memory a_, b_, c_, bias_, scratch_;
  std::unordered_map<int, memory> arguments_;
};

}  // namespace

std::unique_ptr<Gemm> Gemm::Make(const GemmSpec& spec, std::string* error) {
  if (spec.batch == 0 || spec.m == 0 || spec.n == 0 || spec.k == 0) {
    return std::make_unique<EmptyGemm>(spec);
  }
  try {
    return std::make_unique<OneDnnGemm>(spec);
  } catch (const dnnl::error& e) {
    *error = std::string("oneDNN cannot make this matmul: ") + e.what();
    return nullptr;
  }
}

}  // namespace espalier
