// multi_head_attention: projections and products by cuBLAS, one batch of heads per sequence, with
// softmax between them. Scores and probabilities are in f32. The backward pass recomputes the
// probabilities.
#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/cuda/convert.h"
#include "ops/cuda/gemm/cublas_gemm.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"
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

Problem Describe(const KernelSpec& spec, size_t bias_k) {
  const TensorSpec &q = spec.inputs[kQ], &wq = spec.inputs[kWq];
  Problem p;
  p.dtype = q.dtype;
  p.batch = q.dims[0];
  p.rows = q.dims[1];
  p.columns = spec.inputs[kK].dims[1];
  // The attribute counts all heads; a shard has some of them.
  p.whole_heads = spec.attributes.Int("heads");
  p.dim = (wq.global.empty() ? wq.dims : wq.global)[0] / p.whole_heads;
  p.heads = wq.dims[0] / p.dim;
  p.value_dim = spec.inputs[kWv].dims[0] / std::max<int64_t>(1, p.heads);
  p.q_width = q.dims[2];
  p.k_width = spec.inputs[kK].dims[2];
  p.v_width = spec.inputs[kV].dims[2];
  p.out = spec.inputs[kWo].dims[0];
  p.bias_row = Has(spec.inputs, bias_k);
  p.zero_row = spec.attributes.Bool("add_zero_attn");
  p.causal = spec.attributes.Bool("causal");
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.dim)));
  p.rate = spec.attributes.Float("rate");
  p.first_sequence = q.offset.empty() ? 0 : q.offset[0];
  p.first_row = q.offset.empty() ? 0 : q.offset[1];
  p.first_head = wq.offset.empty() ? 0 : wq.offset[0] / p.dim;
  p.whole_rows = q.global.empty() ? p.rows : q.global[1];
  return p;
}

template <typename T>
struct AddBias {
  T* y;
  const T* bias;
  int64_t columns;
  __device__ void operator()(int64_t i) const {
    y[i] = FromFloat<T>(ToFloat(y[i]) + ToFloat(bias[i % columns]));
  }
};

// The additional rows of K or V behind each sequence's columns.
template <typename T>
struct ExtraRows {
  T* rows;
  const T* bias_row;  // may be null
  int64_t columns, all_columns, width;
  __device__ void operator()(int64_t i) const {
    const int64_t extra = all_columns - columns, row = i / width % extra, b = i / width / extra;
    const bool biased = bias_row != nullptr && row == 0;
    rows[(b * all_columns + columns + row) * width + i % width] =
        biased ? bias_row[i % width] : FromFloat<T>(0.0f);
  }
};

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

// One block per row of scores: softmax in place, and the result after dropout in the operands'
// type. A fully masked row becomes 0.
template <typename T>
__global__ void __launch_bounds__(kThreads) SoftmaxKernel(Rules rules, float* scores, T* weights) {
  const int64_t n = rules.all_columns, h = blockIdx.x / rules.rows, s = blockIdx.x % rules.rows;
  scores += blockIdx.x * n;
  weights += blockIdx.x * n;
  float most = -INFINITY;
  for (int64_t t = threadIdx.x; t < n; t += kThreads) {
    scores[t] = rules.Score(scores[t], h, s, t);
    most = fmaxf(most, scores[t]);
  }
  most = BlockMax(most);
  const bool blind = most == -INFINITY;
  float sum = 0;
  for (int64_t t = threadIdx.x; t < n; t += kThreads) {
    scores[t] = blind ? 0.0f : expf(scores[t] - most);
    sum += scores[t];
  }
  sum = BlockSum(sum);
  const float inverse = blind ? 0.0f : 1.0f / sum;
  for (int64_t t = threadIdx.x; t < n; t += kThreads) {
    scores[t] *= inverse;
    weights[t] = FromFloat<T>(rules.Kept(scores[t], h, s, t));
  }
}

// dweights (f32) to the gradient of the raw scores, in the operands' type.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SoftmaxGradientKernel(Rules rules, const float* probabilities, const float* dweights,
                          T* dscores) {
  const int64_t n = rules.all_columns, h = blockIdx.x / rules.rows, s = blockIdx.x % rules.rows;
  probabilities += blockIdx.x * n;
  dweights += blockIdx.x * n;
  dscores += blockIdx.x * n;
  float dot = 0;
  for (int64_t t = threadIdx.x; t < n; t += kThreads) {
    dot += probabilities[t] * rules.Kept(dweights[t], h, s, t);
  }
  dot = BlockSum(dot);
  for (int64_t t = threadIdx.x; t < n; t += kThreads) {
    const float gradient = rules.Kept(dweights[t], h, s, t);
    dscores[t] = FromFloat<T>(probabilities[t] * (gradient - dot) * rules.scale);
  }
}

template <typename T>
struct ValueAt {
  const T* x;
  __device__ float operator()(int64_t i) const { return ToFloat(x[i]); }
};

// The last-but-`extra` row of every sequence: what the bias row's gradient sums.
template <typename T>
struct ExtraRowAt {
  const T* rows;
  int64_t columns, all_columns, width;
  __device__ float operator()(int64_t i) const {
    const int64_t b = i / width;
    return ToFloat(rows[(b * all_columns + columns) * width + i % width]);
  }
};

ReduceShape ColumnSums(int64_t rows, int64_t columns) {
  return ReduceShape::Make({rows, columns}, {true, false});
}

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
                      const void* w, const void* bias, void* y) const {
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        Multiply(Product(m, n, k, {x, false, k, 0}, {w, true, k, 0}, y), args));
    if (bias == nullptr) return KernelStatus::Ok();
    return DispatchFloat(p_.dtype, kName, [&](auto type) {
      using T = typename decltype(type)::T;
      return ForEach(m * n, AddBias<T>{static_cast<T*>(y), static_cast<const T*>(bias), n},
                     StreamOf(args), kName);
    });
  }

  // Q, K and V of all sequences, with K's and V's additional rows.
  KernelStatus Project(const KernelArgs& args, size_t bias_k) const {
    const Problem& p = p_;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Linear(args, p.batch * p.rows, p.inner(), p.q_width,
                                           args.inputs[kQ].data, args.inputs[kWq].data,
                                           DataAt(args, kBq), At(args, q_)));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        ProjectRows(args, kK, p.k_width, bias_k, p.inner(), At(args, k_)));
    return ProjectRows(args, kV, p.v_width, bias_k + 1, p.value(), At(args, v_));
  }

  Rules RulesOf(const KernelArgs& args, size_t mask, int64_t b) const {
    const Problem& p = p_;
    Rules rules{p.rows, p.columns, p.all_columns(), p.first_row, p.causal, p.scale};
    if (Has(args.inputs, mask)) {
      const TensorView& view = args.inputs[mask];
      const size_t rank = view.dims().size();
      const int64_t matrix = p.rows * p.columns;
      rules.head_stride = rank == 4 ? matrix : 0;
      const int64_t at = rank == 2 ? 0 : rank == 3 ? b * matrix : b * p.heads * matrix;
      if (view.dtype() == DType::kBool) {
        rules.visible = view.as<uint8_t>() + at;
      } else {
        rules.added = view.as<float>() + at;
      }
    }
    if (args.training && p.rate > 0) {
      rules.rate = static_cast<float>(p.rate);
      rules.keep_scale = static_cast<float>(1.0 / (1.0 - p.rate));
      rules.seed = args.seed;
      rules.node_key = args.node_key;
      rules.step = static_cast<uint64_t>(args.step);
      rules.head_elements = p.whole_rows * p.all_columns();
      rules.first_element =
          ((p.first_sequence + b) * p.whole_heads + p.first_head) * rules.head_elements +
          p.first_row * p.all_columns();
    }
    return rules;
  }

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
  KernelStatus Attend(const KernelArgs& args, size_t mask, int64_t b) const {
    const Problem& p = p_;
    const int64_t n = p.all_columns(), matrix = p.rows * n;
    float* scores = WorkspaceAt<float>(args, probabilities_);
    if (p.scores() > 0) {
      Gemm gemm =
          Product(p.rows, n, p.dim, {At(args, q_, b * p.rows * p.inner()), false, p.inner(), 0},
                  {At(args, k_, b * n * p.inner()), true, p.inner(), 0}, scores);
      gemm.output = DType::kF32;
      ESPALIER_KERNEL_RETURN_IF_ERROR(PerHead(args, gemm, p.dim, p.dim, n, matrix));
      ESPALIER_KERNEL_RETURN_IF_ERROR(DispatchFloat(p.dtype, kName, [&](auto type) {
        using T = typename decltype(type)::T;
        SoftmaxKernel<T><<<static_cast<unsigned>(p.heads * p.rows), kThreads, 0, StreamOf(args)>>>(
            RulesOf(args, mask, b), scores, reinterpret_cast<T*>(At(args, weights_)));
        return LaunchStatus(kName);
      }));
    }
    return PerHead(args,
                   Product(p.rows, p.value_dim, n, {At(args, weights_), false, n, 0},
                           {At(args, v_, b * n * p.value()), false, p.value(), 0},
                           At(args, context_, b * p.rows * p.value())),
                   matrix, p.value_dim, p.value(), p.value_dim);
  }

  DeviceContexts& contexts_;
  Problem p_;
  WorkspaceLayout layout_;
  size_t q_, k_, v_, probabilities_, weights_, context_;

 private:
  // to[b] = x[b] w^T + bias, then the additional rows. x is input kK or kV.
  KernelStatus ProjectRows(const KernelArgs& args, int x, int64_t x_width, size_t bias_row,
                           int64_t width, char* to) const {
    const Problem& p = p_;
    const void *w = args.inputs[kWq + x].data, *bias = DataAt(args, kBq + x);
    const int64_t extra = p.all_columns() - p.columns;
    if (extra == 0) {
      return Linear(args, p.batch * p.columns, width, x_width, args.inputs[x].data, w, bias, to);
    }
    const int64_t stride = p.all_columns() * width * static_cast<int64_t>(SizeOf(p.dtype));
    for (int64_t b = 0; b < p.batch; ++b) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(Linear(args, p.columns, width, x_width,
                                             InputAt(args, x, b * p.columns * x_width), w, bias,
                                             to + b * stride));
    }
    return DispatchFloat(p.dtype, kName, [&](auto type) {
      using T = typename decltype(type)::T;
      return ForEach(
          p.batch * extra * width,
          ExtraRows<T>{reinterpret_cast<T*>(to), static_cast<const T*>(DataAt(args, bias_row)),
                       p.columns, p.all_columns(), width},
          StreamOf(args), kName);
    });
  }
};

class Forward : public AttentionKernel {
 public:
  Forward(DeviceContexts& contexts, const KernelSpec& spec)
      : AttentionKernel(contexts, Describe(spec, kBiasK)) {}

  KernelStatus Run(const KernelArgs& args) override {
    const Problem& p = p_;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Project(args, kBiasK));
    for (int64_t b = 0; b < p.batch; ++b) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(Attend(args, kMask, b));
    }
    return Linear(args, p.batch * p.rows, p.out, p.value(), At(args, context_),
                  args.inputs[kWo].data, DataAt(args, kBo), args.outputs[0].data);
  }
};

class Backward : public AttentionKernel {
 public:
  Backward(DeviceContexts& contexts, const KernelSpec& spec)
      : AttentionKernel(contexts, Describe(spec, kBackBiasK)) {
    const Problem& p = p_;
    dcontext_ = Add(p.batch * p.rows * p.value());
    dweights_ = layout_.Add(static_cast<size_t>(p.scores()) * sizeof(float));
    dscores_ = Add(p.scores());
    dq_ = Add(p.batch * p.rows * p.inner());
    dk_ = Add(p.batch * p.all_columns() * p.inner());
    dv_ = Add(p.batch * p.all_columns() * p.value());
    size_t partial = 0;
    for (const auto& [rows, columns] :
         {std::pair(p.batch * p.rows, p.inner()), std::pair(p.batch * p.columns, p.inner()),
          std::pair(p.batch * p.columns, p.value()), std::pair(p.batch * p.rows, p.out),
          std::pair(p.batch, p.inner()), std::pair(p.batch, p.value())}) {
      partial = std::max(partial, ColumnSums(rows, columns).WorkspaceBytes());
    }
    partial_ = layout_.Add(partial);
  }

  KernelStatus Run(const KernelArgs& args) override {
    const Problem& p = p_;
    const void* dy = args.inputs[kBackDy].data;
    const int64_t rows = p.batch * p.rows;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Project(args, kBackBiasK));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        Multiply(Product(rows, p.value(), p.out, {dy, false, p.out, 0},
                         {args.inputs[kWo].data, false, p.value(), 0}, At(args, dcontext_)),
                 args));
    for (int64_t b = 0; b < p.batch; ++b) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(Sequence(args, b));
    }
    if (Has(args.outputs, kWo)) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          Multiply(Product(p.out, p.value(), rows, {dy, true, p.out, 0},
                           {At(args, context_), false, p.value(), 0}, args.outputs[kWo].data),
                   args));
    }
    ESPALIER_KERNEL_RETURN_IF_ERROR(SumRows(args, dy, rows, p.out, kBo));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        FoldExtraRows(args, At(args, dk_), At(args, k_), p.inner(), kBiasK));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        FoldExtraRows(args, At(args, dv_), At(args, v_), p.value(), kBiasV));
    ESPALIER_KERNEL_RETURN_IF_ERROR(Unproject(args, kQ, At(args, dq_), rows, p.inner(), p.q_width));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        Unproject(args, kK, At(args, dk_), p.batch * p.columns, p.inner(), p.k_width));
    return Unproject(args, kV, At(args, dv_), p.batch * p.columns, p.value(), p.v_width);
  }

 private:
  // Recomputes the context of sequence b and computes the gradients of its Q, K and V.
  KernelStatus Sequence(const KernelArgs& args, int64_t b) const {
    const Problem& p = p_;
    const int64_t n = p.all_columns(), matrix = p.rows * n;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Attend(args, kBackMask, b));
    const char* dcontext = At(args, dcontext_, b * p.rows * p.value());
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        PerHead(args,
                Product(n, p.value_dim, p.rows, {At(args, weights_), true, n, 0},
                        {dcontext, false, p.value(), 0}, At(args, dv_, b * n * p.value())),
                matrix, p.value_dim, p.value(), p.value_dim));
    if (p.scores() > 0) {
      float* dweights = WorkspaceAt<float>(args, dweights_);
      Gemm gemm = Product(p.rows, n, p.value_dim, {dcontext, false, p.value(), 0},
                          {At(args, v_, b * n * p.value()), true, p.value(), 0}, dweights);
      gemm.output = DType::kF32;
      ESPALIER_KERNEL_RETURN_IF_ERROR(PerHead(args, gemm, p.value_dim, p.value_dim, n, matrix));
      ESPALIER_KERNEL_RETURN_IF_ERROR(DispatchFloat(p.dtype, kName, [&](auto type) {
        using T = typename decltype(type)::T;
        SoftmaxGradientKernel<T>
            <<<static_cast<unsigned>(p.heads * p.rows), kThreads, 0, StreamOf(args)>>>(
                RulesOf(args, kBackMask, b), WorkspaceAt<float>(args, probabilities_), dweights,
                reinterpret_cast<T*>(At(args, dscores_)));
        return LaunchStatus(kName);
      }));
    }
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        PerHead(args,
                Product(p.rows, p.dim, n, {At(args, dscores_), false, n, 0},
                        {At(args, k_, b * n * p.inner()), false, p.inner(), 0},
                        At(args, dq_, b * p.rows * p.inner())),
                matrix, p.dim, p.inner(), p.dim));
    return PerHead(args,
                   Product(n, p.dim, p.rows, {At(args, dscores_), true, n, 0},
                           {At(args, q_, b * p.rows * p.inner()), false, p.inner(), 0},
                           At(args, dk_, b * n * p.inner())),
                   matrix, p.dim, p.inner(), p.dim);
  }

  // Computes output `result`, if present: the sum of the rows of x.
  KernelStatus SumRows(const KernelArgs& args, const void* x, int64_t rows, int64_t columns,
                       size_t result) const {
    if (!Has(args.outputs, result)) return KernelStatus::Ok();
    return DispatchFloat(p_.dtype, kName, [&](auto type) {
      using T = typename decltype(type)::T;
      return Reduce(ColumnSums(rows, columns), ValueAt<T>{static_cast<const T*>(x)},
                    StoreScaled<T>{args.outputs[result].as<T>(), 1.0f}, WorkspaceAt(args, partial_),
                    StreamOf(args), kName);
    });
  }

  // The gradient of the bias row, which follows each sequence's columns; then the columns of all
  // sequences are moved together, by way of `spare`, which is as large.
  KernelStatus FoldExtraRows(const KernelArgs& args, char* rows, char* spare, int64_t width,
                             size_t result) const {
    const Problem& p = p_;
    if (p.all_columns() == p.columns) return KernelStatus::Ok();
    if (p.bias_row && Has(args.outputs, result)) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(DispatchFloat(p.dtype, kName, [&](auto type) {
        using T = typename decltype(type)::T;
        return Reduce(
            ColumnSums(p.batch, width),
            ExtraRowAt<T>{reinterpret_cast<const T*>(rows), p.columns, p.all_columns(), width},
            StoreScaled<T>{args.outputs[result].as<T>(), 1.0f}, WorkspaceAt(args, partial_),
            StreamOf(args), kName);
      }));
    }
    const size_t size = SizeOf(p.dtype), bytes = static_cast<size_t>(p.columns * width) * size;
    const size_t stride = static_cast<size_t>(p.all_columns() * width) * size;
    for (int64_t b = 0; b < p.batch; ++b) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(spare + b * bytes, rows + b * stride, bytes,
                                     cudaMemcpyDeviceToDevice, StreamOf(args)),
                     kName));
    }
    return CudaStatus(
        cudaMemcpyAsync(rows, spare, p.batch * bytes, cudaMemcpyDeviceToDevice, StreamOf(args)),
        kName);
  }

  // Gradients of x (input kQ, kK or kV), its weight and its bias from that of its projection.
  KernelStatus Unproject(const KernelArgs& args, int x, const void* dprojected, int64_t rows,
                         int64_t width, int64_t x_width) const {
    if (Has(args.outputs, x)) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          Multiply(Product(rows, x_width, width, {dprojected, false, width, 0},
                           {args.inputs[kWq + x].data, false, x_width, 0}, args.outputs[x].data),
                   args));
    }
    if (Has(args.outputs, kWq + x)) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          Multiply(Product(width, x_width, rows, {dprojected, true, width, 0},
                           {args.inputs[x].data, false, x_width, 0}, args.outputs[kWq + x].data),
                   args));
    }
    return SumRows(args, dprojected, rows, width, kBq + x);
  }

  size_t dcontext_, dweights_, dscores_, dq_, dk_, dv_, partial_;
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

void RegisterMultiHeadAttentionCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_multi_head_attention;
  registry.Add("multi_head_attention", InNarrowest(Factory<Forward>(contexts), kMask));
  registry.Add("multi_head_attention_grad", InNarrowest(Factory<Backward>(contexts), kBackMask));
}

}  // namespace espalier
