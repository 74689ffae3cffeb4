// The gradient of multi_head_attention. It recomputes the probabilities.
#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/multi_head_attention.h"

namespace espalier {
namespace multi_head_attention {
namespace {

// Inputs of the backward kernel after kBv. Its outputs are in the order of the forward inputs.
enum { kBackBiasK = 10, kBackBiasV, kBackMask, kBackDy };

// In place: dp becomes the gradient of the scores before scaling.
void SoftmaxRowGradient(const float* p, float* dp, int64_t n, float scale) {
  Vectorize(
      [](const float* p, float* dp, int64_t n, float scale) {
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < n; ++i) dot += p[i] * dp[i];
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) dp[i] = p[i] * (dp[i] - dot) * scale;
      },
      p, dp, n, scale);
}

// sums[j] = sum over rows of x[i, j], rows in order.
void SumRows(const float* x, int64_t rows, int64_t stride, int64_t columns, float* sums) {
  if (sums == nullptr) return;
  constexpr int64_t kLine = 16;  // columns of a cache line
  ParallelRanges((columns + kLine - 1) / kLine, kLine * rows, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kLine, end = std::min(columns, last * kLine);
    for (int64_t j = begin; j < end; ++j) sums[j] = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = x + i * stride;
      for (int64_t j = begin; j < end; ++j) sums[j] += row[j];
    }
  });
}

class Backward : public AttentionKernel {
 public:
  static std::unique_ptr<Kernel> Make(const KernelSpec& spec, std::string* refusal) {
    auto kernel = std::make_unique<Backward>(Describe(spec, kBackBiasK));
    return kernel->Prepare(spec, refusal) ? std::move(kernel) : nullptr;
  }
  explicit Backward(const Problem& p) : AttentionKernel(p) {}

  KernelStatus Run(const KernelArgs& args) override {
    const Problem& p = p_;
    const float* dy = FloatsAt(args, kBackDy);
    std::string error = Project(args, kBackBiasK);
    if (error.empty()) {
      error = dcontext_product_->Run(dy, FloatsAt(args, kWo), nullptr, At(args, dcontext_),
                                     Scratch(args));
    }
    for (int64_t b = 0; b < p.batch && error.empty(); ++b) error = Sequence(args, b);
    if (error.empty() && Result(args, kWo) != nullptr) {
      error = dwo_product_->Run(dy, At(args, context_), nullptr, Result(args, kWo), Scratch(args));
    }
    SumRows(dy, p.batch * p.rows, p.out, p.out, Result(args, kBo));
    if (!error.empty()) return KernelStatus{error};
    ExtraRows(At(args, dk_), p.inner(), Result(args, kBiasK));
    ExtraRows(At(args, dv_), p.value(), Result(args, kBiasV));
    error = Unproject(args, q_back_, kQ, At(args, dq_), p.batch * p.rows, p.inner());
    if (error.empty()) {
      error = Unproject(args, k_back_, kK, At(args, dk_), p.batch * p.columns, p.inner());
    }
    if (error.empty()) {
      error = Unproject(args, v_back_, kV, At(args, dv_), p.batch * p.columns, p.value());
    }
    return KernelStatus{error};
  }

 private:
  // Gradients of a projection's x and weight.
  struct Back {
    std::shared_ptr<Gemm> dx, dweight;
  };

  bool MakeBack(int64_t rows, int64_t inner, int64_t width, Back* back, std::string* refusal) {
    return products_.Make(Product(rows, width, inner, RowMajor(inner), RowMajor(width)), &back->dx,
                          refusal) &&
           products_.Make(Product(inner, width, rows, Transposed(inner), RowMajor(width)),
                          &back->dweight, refusal);
  }

  bool Prepare(const KernelSpec& spec, std::string* refusal) {
    const Problem& p = p_;
    const int64_t rows = p.batch * p.rows, columns = p.batch * p.columns, n = p.all_columns();
    const MatrixLayout scores = {p.rows * n, n, 1}, turned = {p.rows * n, 1, n};
    const MatrixLayout values = {p.value_dim, p.value(), 1}, keys = {p.dim, p.inner(), 1};
    const bool made =
        MakeProbabilities(spec, refusal) &&
        products_.Make(Product(rows, p.value(), p.out, RowMajor(p.out), RowMajor(p.value())),
                       &dcontext_product_, refusal) &&
        products_.Make(PerHead(p, p.rows, p.value_dim, n, scores, values, values),
                       &context_product_, refusal) &&
        products_.Make(PerHead(p, n, p.value_dim, p.rows, turned, values, values), &dv_product_,
                       refusal) &&
        products_.Make(
            PerHead(p, p.rows, n, p.value_dim, values, {p.value_dim, 1, p.value()}, scores),
            &dscores_product_, refusal) &&
        products_.Make(PerHead(p, p.rows, p.dim, n, scores, keys, keys), &dq_product_, refusal) &&
        products_.Make(PerHead(p, n, p.dim, p.rows, turned, keys, keys), &dk_product_, refusal) &&
        products_.Make(Product(p.out, p.value(), rows, Transposed(p.out), RowMajor(p.value())),
                       &dwo_product_, refusal) &&
        MakeBack(rows, p.inner(), p.q_width, &q_back_, refusal) &&
        MakeBack(columns, p.inner(), p.k_width, &k_back_, refusal) &&
        MakeBack(columns, p.value(), p.v_width, &v_back_, refusal);
    if (!made) return false;
    context_ = AddFloats(rows * p.value());
    dcontext_ = AddFloats(rows * p.value());
    dscores_ = AddFloats(p.scores());
    dq_ = AddFloats(rows * p.inner());
    dk_ = AddFloats(p.batch * n * p.inner());
    dv_ = AddFloats(p.batch * n * p.value());
    scratch_ = layout_.Add(products_.bytes());
    return true;
  }

  static float* Result(const KernelArgs& args, size_t i) {
    return i < args.outputs.size() ? args.outputs[i].as<float>() : nullptr;
  }

  // Recomputes the context of sequence b and computes the gradients of its Q, K and V.
  std::string Sequence(const KernelArgs& args, int64_t b) const {
    const Problem& p = p_;
    const int64_t n = p.all_columns();
    float* scratch = Scratch(args);
    float* dscores = At(args, dscores_);
    const float* v = At(args, v_) + b * n * p.value();
    const float* dcontext = At(args, dcontext_) + b * p.rows * p.value();
    std::string error = Probabilities(args, kBackMask, b);
    const auto run = [&](const std::shared_ptr<Gemm>& gemm, const float* a, const float* x,
                         float* c) {
      if (error.empty()) error = gemm->Run(a, x, nullptr, c, scratch);
    };
    run(context_product_, Weights(args), v, At(args, context_) + b * p.rows * p.value());
    run(dv_product_, Weights(args), dcontext, At(args, dv_) + b * n * p.value());
    run(dscores_product_, dcontext, v, dscores);
    if (!error.empty()) return error;
    const bool drops = Drops(args);
    ParallelRanges(p.heads * p.rows, 6 * n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = dscores + i * n;
        if (drops) Drop(args, b, i, row, row);
        SoftmaxRowGradient(At(args, probabilities_) + i * n, row, n, p.scale);
      }
    });
    run(dq_product_, dscores, At(args, k_) + b * n * p.inner(),
        At(args, dq_) + b * p.rows * p.inner());
    run(dk_product_, dscores, At(args, q_) + b * p.rows * p.inner(),
        At(args, dk_) + b * n * p.inner());
    return error;
  }

  // Computes the gradient of the bias row, which follows each sequence's columns, then makes the
  // columns of all sequences contiguous.
  void ExtraRows(float* rows, int64_t width, float* bias_row) const {
    const Problem& p = p_;
    if (p.extra() == 0) return;
    const int64_t stride = p.all_columns() * width;
    if (p.bias_row) SumRows(rows + p.columns * width, p.batch, stride, width, bias_row);
    for (int64_t b = 1; b < p.batch; ++b) {
      std::copy_n(rows + b * stride, p.columns * width, rows + b * p.columns * width);
    }
  }

  // Computes the gradients of x (input kQ, kK or kV), its weight and its bias from that of its
  // projection.
  std::string Unproject(const KernelArgs& args, const Back& back, int x, const float* dprojected,
                        int64_t rows, int64_t width) const {
    std::string error;
    if (Result(args, x) != nullptr) {
      error = back.dx->Run(dprojected, FloatsAt(args, kWq + x), nullptr, Result(args, x),
                           Scratch(args));
    }
    if (error.empty() && Result(args, kWq + x) != nullptr) {
      error = back.dweight->Run(dprojected, FloatsAt(args, x), nullptr, Result(args, kWq + x),
                                Scratch(args));
    }
    SumRows(dprojected, rows, width, width, Result(args, kBq + x));
    return error;
  }

  std::shared_ptr<Gemm> dcontext_product_, context_product_, dv_product_, dscores_product_;
  std::shared_ptr<Gemm> dq_product_, dk_product_, dwo_product_;
  Back q_back_, k_back_, v_back_;
  size_t context_ = 0, dcontext_ = 0, dscores_ = 0, dq_ = 0, dk_ = 0, dv_ = 0;
};

}  // namespace
}  // namespace multi_head_attention

void RegisterMultiHeadAttentionGradCpu(KernelRegistry& registry) {
  registry.Add("multi_head_attention_grad", ViaF32(multi_head_attention::Backward::Make));
}

}  // namespace espalier
