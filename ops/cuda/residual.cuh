// Fused add and norm: x + residual is formed row by row before it is normalized.
#pragma once

#include "ops/cuda/copy.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/strided.h"

namespace espalier {

template <typename T>
struct Residual {
  const T* residual = nullptr;  // null: the operator has none
  T* sum = nullptr;             // output x + residual; y if the graph does not use the sum

  // Input 1 and output 1 of an operator with a residual.
  static Residual Of(const KernelArgs& args) {
    const TensorView& sum = args.outputs[1];
    return {args.inputs[1].as<T>(), (sum.present() ? sum : args.outputs[0]).template as<T>()};
  }

  // Returns element i of the normalized operand, as it is stored.
  __device__ float At(const T* x, int64_t i) const {
    if (residual == nullptr) return ToFloat(x[i]);
    return ToFloat(FromFloat<T>(ToFloat(x[i]) + ToFloat(residual[i])));
  }

  // Returns the row to normalize: `x`, or the sum, rounded as it is stored. To be called by all
  // threads of the block.
  __device__ const T* AddTo(const T* x, int64_t offset, int64_t n) const {
    if (residual == nullptr) return x;
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      sum[offset + i] = FromFloat<T>(ToFloat(x[i]) + ToFloat(residual[offset + i]));
    }
    __syncthreads();
    return sum + offset;
  }
};

// The gradient if the graph uses only the sum: outputs 0 and 1 are dsum; those of parameters are 0.
inline KernelStatus OnlySumUsed(const TensorView& dsum, const KernelArgs& args, const char* op) {
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    const TensorView& target = args.outputs[i];
    if (!target.present()) continue;
    ESPALIER_KERNEL_RETURN_IF_ERROR(i < 2 ? CopyWhole(dsum, target, args.stream, op)
                                          : FillOnStream(target.data, target.dtype(),
                                                         target.num_elements(), 0, StreamOf(args)));
  }
  return KernelStatus::Ok();
}

}  // namespace espalier
