// Holds what multi_head_attention and its gradient share: the problem, the masks, the projections
// of Q, K and V, and the probabilities of one sequence. Products are by cuBLAS, one batch of heads
// per sequence, with softmax between them. Scores and probabilities are in f32.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/cuda/gemm/cublas_gemm.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/philox.h"

namespace espalier {
namespace cuda_multi_head_attention {

constexpr char kName[] = "multi_head_attention";

// Inputs of the forward kernel.
enum { kQ, kK, kV, kWq, kWk, kWv, kWo, kBq, kBk, kBv, kBo, kBiasK, kBiasV, kMask };
// Inputs of the backward kernel after kBv. Its outputs are in the order of the forward inputs.
enum { kBackBiasK = 10, kBackBiasV, kBackMask, kBackDy };

struct Problem {
  int64_t batch, rows, columns, heads, dim, value_dim;
  int64_t q_width, k_width, v_width, out;
  bool bias_row, zero_row, causal;
  float scale;
  double rate;
  DType dtype;
  // The position of the shard in the whole tensor, for the causal mask and dropout.
  int64_t first_sequence, first_row, first_head, whole_rows, whole_heads;

  int64_t all_columns() const { return columns + (bias_row ? 1 : 0) + (zero_row ? 1 : 0); }
  int64_t inner() const { return heads * dim; }
  int64_t value() const { return heads * value_dim; }
  int64_t scores() const { return heads * rows * all_columns(); }
};

// `bias_k`: the input that is K's bias row.
Problem Describe(const KernelSpec& spec, size_t bias_k);

// Which scores a row sees, and the dropout of its probabilities.
struct Rules {
  int64_t rows, columns, all_columns;
  int64_t first_row;
  bool causal;
  float scale;
  const uint8_t* visible = nullptr;  // of this sequence, [H or 1, S, T]
  const float* added = nullptr;
  int64_t head_stride = 0;  // of both
  float rate = 0, keep_scale = 1;
  uint64_t seed = 0, node_key = 0, step = 0;
  int64_t first_element = 0;  // of (head 0, row 0) in the whole
  int64_t head_elements = 0;  // from one head to the next there

  __device__ float Score(float raw, int64_t h, int64_t s, int64_t t) const {
    if (t >= columns) return raw * scale;
    if (causal && t > first_row + s) return -INFINITY;
    const int64_t at = h * head_stride + s * columns + t;
    if (visible != nullptr) return visible[at] ? raw * scale : -INFINITY;
    return added != nullptr ? raw * scale + added[at] : raw * scale;
  }
  __device__ float Kept(float value, int64_t h, int64_t s, int64_t t) const {
    if (rate == 0) return value;
    const int64_t element = first_element + h * head_elements + s * all_columns + t;
    const bool keep = PhiloxUniform(seed, node_key, step, static_cast<uint64_t>(element)) >= rate;
    return keep ? value * keep_scale : 0.0f;
  }
};

// Shared by both kernels: projections, and the probabilities of one sequence.
class AttentionKernel : public Kernel {
 public:
  AttentionKernel(DeviceContexts& contexts, const Problem& p) : contexts_(contexts), p_(p) {
    q_ = Add(p.batch * p.rows * p.inner());
    k_ = Add(p.batch * p.all_columns() * p.inner());
    v_ = Add(p.batch * p.all_columns() * p.value());
    probabilities_ = layout_.Add(static_cast<size_t>(p.scores()) * sizeof(float));
    weights_ = Add(p.scores());
    context_ = Add(p.batch * p.rows * p.value());
  }
  size_t workspace_bytes() const override { return layout_.bytes(); }

 protected:
  // Elements of the operands' type.
  size_t Add(int64_t n) { return layout_.Add(static_cast<size_t>(n) * SizeOf(p_.dtype)); }
  char* At(const KernelArgs& args, size_t offset, int64_t element = 0) const {
    return WorkspaceAt<char>(args, offset) + element * static_cast<int64_t>(SizeOf(p_.dtype));
  }
  static const void* DataAt(const KernelArgs& args, size_t i) {
    return Has(args.inputs, i) ? args.inputs[i].data : nullptr;
  }
  const char* InputAt(const KernelArgs& args, size_t i, int64_t element) const {
    return args.inputs[i].as<char>() + element * static_cast<int64_t>(SizeOf(p_.dtype));
  }

  Gemm Product(int64_t m, int64_t n, int64_t k, GemmOperand a, GemmOperand b, void* c) const {
    Gemm gemm;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = a;
    gemm.b = b;
    gemm.c = c;
    gemm.ldc = n;
    gemm.input = gemm.output = p_.dtype;
    return gemm;
  }
  KernelStatus Multiply(const Gemm& gemm, const KernelArgs& args) const {
    return RunGemm(contexts_, gemm, args.stream, kName);
  }

  // y[m, n] = x[m, k] w[n, k]^T + bias
  KernelStatus Linear(const KernelArgs& args, int64_t m, int64_t n, int64_t k, const void* x,
                      const void* w, const void* bias, void* y) const;
  // Q, K and V of all sequences, with K's and V's additional rows.
  KernelStatus Project(const KernelArgs& args, size_t bias_k) const;
  Rules RulesOf(const KernelArgs& args, size_t mask, int64_t b) const;

  // One product per head; strides from one head to the next.
  KernelStatus PerHead(const KernelArgs& args, Gemm gemm, int64_t a_stride, int64_t b_stride,
                       int64_t ldc, int64_t c_stride) const {
    gemm.batch = p_.heads;
    gemm.a.batch_stride = a_stride;
    gemm.b.batch_stride = b_stride;
    gemm.ldc = ldc;
    gemm.c_stride = c_stride;
    return Multiply(gemm, args);
  }

  // Computes the probabilities of sequence b, before and after dropout, and the context.
  KernelStatus Attend(const KernelArgs& args, size_t mask, int64_t b) const;

  DeviceContexts& contexts_;
  Problem p_;
  WorkspaceLayout layout_;
  size_t q_, k_, v_, probabilities_, weights_, context_;

 private:
  // to[b] = x[b] w^T + bias, then the additional rows. x is input kK or kV.
  KernelStatus ProjectRows(const KernelArgs& args, int x, int64_t x_width, size_t bias_row,
                           int64_t width, char* to) const;
};

template <typename K>
KernelFactory Factory(DeviceContexts& contexts) {
  return [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[kQ].dtype, refusal)) return nullptr;
    if (spec.batch_invariant) {
      *refusal = "cuBLAS does not keep one order of summation for all numbers of rows";
      return nullptr;
    }
    return std::make_unique<K>(contexts, spec);
  };
}

}  // namespace cuda_multi_head_attention
}  // namespace espalier
