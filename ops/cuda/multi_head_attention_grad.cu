// The gradient of multi_head_attention. It recomputes the probabilities.
#include <algorithm>
#include <utility>

#include "ops/cuda/convert.h"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/multi_head_attention.cuh"

namespace espalier {
namespace cuda_multi_head_attention {

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

}  // namespace cuda_multi_head_attention

void RegisterMultiHeadAttentionGradCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_multi_head_attention;
  registry.Add("multi_head_attention_grad", InNarrowest(Factory<Backward>(contexts), kBackMask));
}

}  // namespace espalier
