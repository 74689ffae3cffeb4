// Shared by multi_head_attention and its gradient: the projections of Q, K and V, and the
// probabilities of one sequence. Projections and matrix products are by oneDNN, sequence by
// sequence, with softmax between them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/cpu/onednn/onednn.h"
#include "ops/cpu/simd/f32_math.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"
#include "ops/kernel/kernel.h"
#include "ops/kernel/philox.h"

namespace espalier::multi_head_attention {

// Inputs of the forward kernel.
enum { kQ, kK, kV, kWq, kWk, kWv, kWo, kBq, kBk, kBv, kBo, kBiasK, kBiasV, kMask };

struct Problem {
  int64_t batch, rows, columns, heads, dim, value_dim;
  int64_t q_width, k_width, v_width, out;
  bool bias_row, zero_row, causal;
  float scale;
  double rate;

  int64_t extra() const { return (bias_row ? 1 : 0) + (zero_row ? 1 : 0); }
  int64_t all_columns() const { return columns + extra(); }
  int64_t inner() const { return heads * dim; }
  int64_t value() const { return heads * value_dim; }
  int64_t scores() const { return heads * rows * all_columns(); }
};

inline bool Has(const std::vector<TensorSpec>& specs, size_t i) {
  return i < specs.size() && specs[i].dtype != DType::kInvalid;
}

inline const float* FloatsAt(const KernelArgs& args, size_t i) {
  return i < args.inputs.size() ? args.inputs[i].as<float>() : nullptr;
}

inline Problem Describe(const KernelSpec& spec, size_t bias_k) {
  const auto dims = [&](int i) -> const Dims& { return spec.inputs[i].dims; };
  Problem p;
  p.batch = dims(kQ)[0];
  p.rows = dims(kQ)[1];
  p.columns = dims(kK)[1];
  // The attribute counts all heads; a shard has some of them.
  const int64_t heads = spec.attributes.Int("heads");
  const Dims& whole = spec.inputs[kWq].global.empty() ? dims(kWq) : spec.inputs[kWq].global;
  p.dim = whole[0] / heads;
  p.heads = dims(kWq)[0] / p.dim;
  p.value_dim = dims(kWv)[0] / std::max<int64_t>(1, p.heads);
  p.q_width = dims(kQ)[2];
  p.k_width = dims(kK)[2];
  p.v_width = dims(kV)[2];
  p.out = dims(kWo)[0];
  p.bias_row = Has(spec.inputs, bias_k);
  p.zero_row = spec.attributes.Bool("add_zero_attn");
  p.causal = spec.attributes.Bool("causal");
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.dim)));
  p.rate = spec.attributes.Float("rate");
  return p;
}

inline MatrixLayout RowMajor(int64_t columns) { return {0, columns, 1}; }
inline MatrixLayout Transposed(int64_t columns) { return {0, 1, columns}; }

// The products of one kernel; they share scratch memory.
class Products {
 public:
  // Returns false and sets *refusal if oneDNN does not support the product.
  bool Make(GemmSpec spec, std::shared_ptr<Gemm>* gemm, std::string* refusal) {
    *gemm = Gemm::Make(spec, refusal);
    if (*gemm != nullptr) bytes_ = std::max(bytes_, (*gemm)->workspace_bytes());
    return *gemm != nullptr;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// c[m, n] = a[m, k] b[k, n]
inline GemmSpec Product(int64_t m, int64_t n, int64_t k, MatrixLayout a, MatrixLayout b) {
  GemmSpec spec;
  spec.m = m;
  spec.n = n;
  spec.k = k;
  spec.a = a;
  spec.b = b;
  spec.c = RowMajor(n);
  return spec;
}

// x[m, k] w[n, k]^T (+ bias)
inline GemmSpec Projection(int64_t m, int64_t n, int64_t k, bool bias) {
  GemmSpec spec = Product(m, n, k, RowMajor(k), Transposed(k));
  spec.bias = bias;
  return spec;
}

// One product per head. Head h of an operand begins at h * the batch stride.
inline GemmSpec PerHead(const Problem& p, int64_t m, int64_t n, int64_t k, MatrixLayout a,
                        MatrixLayout b, MatrixLayout c) {
  GemmSpec spec = Product(m, n, k, a, b);
  spec.batch = p.heads;
  spec.c = c;
  return spec;
}

// In place: softmax of one row of scores; a fully masked row becomes 0.
inline void SoftmaxRow(float* s, int64_t n) {
  Vectorize(
      [](float* s, int64_t n) {
        float max = -__builtin_inff();
#pragma omp simd reduction(max : max)
        for (int64_t i = 0; i < n; ++i) max = s[i] > max ? s[i] : max;
        if (max == -__builtin_inff()) {
          for (int64_t i = 0; i < n; ++i) s[i] = s[i] != s[i] ? s[i] : 0.0f;
          return;
        }
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; ++i) {
          const float e = FastExp(s[i] - max);
          s[i] = e;
          sum += e;
        }
        const float inverse = 1.0f / sum;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) s[i] *= inverse;
      },
      s, n);
}

// Shared by both kernels: projections, and the probabilities of one sequence.
class AttentionKernel : public Kernel {
 public:
  size_t workspace_bytes() const override { return layout_.bytes(); }

 protected:
  explicit AttentionKernel(const Problem& p) : p_(p) {}

  bool MakeProbabilities(const KernelSpec& spec, std::string* refusal) {
    const Problem& p = p_;
    const int64_t at_once = p.extra() > 0 ? 1 : p.batch;  // rows of K and V may lie apart
    const MatrixLayout keys = {p.dim, 1, p.inner()};
    const MatrixLayout scores = {p.rows * p.all_columns(), p.all_columns(), 1};
    const bool made =
        products_.Make(Projection(p.batch * p.rows, p.inner(), p.q_width, Has(spec.inputs, kBq)),
                       &q_product_, refusal) &&
        products_.Make(Projection(at_once * p.columns, p.inner(), p.k_width, Has(spec.inputs, kBk)),
                       &k_product_, refusal) &&
        products_.Make(Projection(at_once * p.columns, p.value(), p.v_width, Has(spec.inputs, kBv)),
                       &v_product_, refusal) &&
        products_.Make(
            PerHead(p, p.rows, p.all_columns(), p.dim, {p.dim, p.inner(), 1}, keys, scores),
            &scores_product_, refusal);
    if (!made) return false;
    q_ = AddFloats(p.batch * p.rows * p.inner());
    k_ = AddFloats(p.batch * p.all_columns() * p.inner());
    v_ = AddFloats(p.batch * p.all_columns() * p.value());
    probabilities_ = AddFloats(p.scores());
    dropped_ = p.rate > 0 ? AddFloats(p.scores()) : probabilities_;
    return true;
  }

  size_t AddFloats(int64_t n) { return layout_.Add(n * sizeof(float)); }
  float* At(const KernelArgs& args, size_t offset) const {
    return WorkspaceAt(args.workspace, offset);
  }
  float* Scratch(const KernelArgs& args) const { return At(args, scratch_); }

  // Computes Q, K and V of all sequences, with the additional rows of K and V.
  std::string Project(const KernelArgs& args, size_t bias_k) const {
    const Problem& p = p_;
    std::string error = q_product_->Run(FloatsAt(args, kQ), FloatsAt(args, kWq),
                                        FloatsAt(args, kBq), At(args, q_), Scratch(args));
    if (error.empty()) {
      error = ProjectRows(args, *k_product_, kK, p.k_width, kWk, kBk, FloatsAt(args, bias_k),
                          p.inner(), At(args, k_));
    }
    if (error.empty()) {
      error = ProjectRows(args, *v_product_, kV, p.v_width, kWv, kBv, FloatsAt(args, bias_k + 1),
                          p.value(), At(args, v_));
    }
    return error;
  }

  // Computes the probabilities of sequence b, and the same after dropout.
  std::string Probabilities(const KernelArgs& args, size_t mask, int64_t b) const {
    const Problem& p = p_;
    float* all = At(args, probabilities_);
    std::string error = scores_product_->Run(At(args, q_) + b * p.rows * p.inner(),
                                             At(args, k_) + b * p.all_columns() * p.inner(),
                                             nullptr, all, Scratch(args));
    if (!error.empty()) return error;
    const int64_t n = p.all_columns();
    const bool drops = Drops(args);
    float* dropped = At(args, dropped_);
    const int64_t first_row = Offset(args, kQ, 1);
    ParallelRanges(p.heads * p.rows, 10 * n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = all + i * n;
        Mask(args, mask, b, i / p.rows, i % p.rows, first_row, row);
        SoftmaxRow(row, n);
        if (drops) Drop(args, b, i, row, dropped + i * n);
      }
    });
    return "";
  }

  bool Drops(const KernelArgs& args) const { return args.training && p_.rate > 0; }
  // Memory of the probabilities after dropout.
  const float* Weights(const KernelArgs& args) const {
    return At(args, Drops(args) ? dropped_ : probabilities_);
  }

  // to = dropout(from) of row i of sequence b's scores. The mask follows the element's index in the
  // whole tensor.
  void Drop(const KernelArgs& args, int64_t b, int64_t i, const float* from, float* to) const {
    const Problem& p = p_;
    const TensorSpec &q = args.inputs[kQ].spec, &w = args.inputs[kWq].spec;
    const int64_t rows = q.global.empty() ? p.rows : q.global[1];
    const int64_t heads = (w.global.empty() ? p.inner() : w.global[0]) / p.dim;
    const int64_t sequence = Offset(args, kQ, 0) + b;
    const int64_t head = Offset(args, kWq, 0) / p.dim + i / p.rows;
    const int64_t row = Offset(args, kQ, 1) + i % p.rows;
    const int64_t n = p.all_columns(), first = ((sequence * heads + head) * rows + row) * n;
    const float rate = static_cast<float>(p.rate), scale = static_cast<float>(1.0 / (1.0 - p.rate));
    for (int64_t t = 0; t < n; ++t) {
      const bool keep = PhiloxUniform(args.seed, args.node_key, static_cast<uint64_t>(args.step),
                                      static_cast<uint64_t>(first + t)) >= rate;
      to[t] = keep ? from[t] * scale : 0.0f;
    }
  }

  static int64_t Offset(const KernelArgs& args, int input, int dim) {
    const Dims& offset = args.inputs[input].spec.offset;
    return offset.empty() ? 0 : offset[dim];
  }

  Problem p_;
  Products products_;
  WorkspaceLayout layout_;
  std::shared_ptr<Gemm> q_product_, k_product_, v_product_, scores_product_;
  size_t q_ = 0, k_ = 0, v_ = 0, probabilities_ = 0, dropped_ = 0, scratch_ = 0;

 private:
  // to[b] = x[b] w^T + bias, then the additional rows.
  std::string ProjectRows(const KernelArgs& args, Gemm& product, int x, int64_t x_width, int w,
                          int bias, const float* bias_row, int64_t width, float* to) const {
    const Problem& p = p_;
    const float* from = FloatsAt(args, x);
    if (p.extra() == 0) {
      return product.Run(from, FloatsAt(args, w), FloatsAt(args, bias), to, Scratch(args));
    }
    for (int64_t b = 0; b < p.batch; ++b) {
      float* rows = to + b * p.all_columns() * width;
      const std::string error = product.Run(from + b * p.columns * x_width, FloatsAt(args, w),
                                            FloatsAt(args, bias), rows, Scratch(args));
      if (!error.empty()) return error;
      rows += p.columns * width;
      if (p.bias_row) {
        std::copy_n(bias_row, width, rows);
        rows += width;
      }
      if (p.zero_row) std::fill_n(rows, width, 0.0f);
    }
    return "";
  }

  // Scales one row of scores and applies the mask.
  void Mask(const KernelArgs& args, size_t mask, int64_t b, int64_t h, int64_t s, int64_t first_row,
            float* row) const {
    const Problem& p = p_;
    for (int64_t t = 0; t < p.all_columns(); ++t) row[t] *= p.scale;
    if (mask < args.inputs.size() && args.inputs[mask].present()) {
      const TensorView& view = args.inputs[mask];
      const size_t rank = view.dims().size();
      const int64_t matrix = rank == 2 ? 0 : rank == 3 ? b : b * p.heads + h;
      const int64_t at = (matrix * p.rows + s) * p.columns;
      if (view.dtype() == DType::kBool) {
        const uint8_t* visible = view.as<uint8_t>() + at;
        for (int64_t t = 0; t < p.columns; ++t) row[t] = visible[t] ? row[t] : -INFINITY;
      } else {
        const float* added = view.as<float>() + at;
        for (int64_t t = 0; t < p.columns; ++t) row[t] += added[t];
      }
    }
    if (!p.causal) return;
    for (int64_t t = first_row + s + 1; t < p.columns; ++t) row[t] = -INFINITY;
  }
};

}  // namespace espalier::multi_head_attention
