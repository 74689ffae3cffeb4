// Matrix-vector products with packed weights of 8 and 4 bits (ops/kernel/packed_weights.h), for
// mixtures of experts: quantizes rows to int8 and computes blocks of 16 outputs.
#pragma once

#include "ops/cuda/gemm/quantize_group.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {

constexpr int kPackedWarps = kThreads / 32;

struct QuantizedActivations {
  int64_t rows, groups;
  int8_t* q;     // [rows, groups * 32]
  float* scale;  // [rows, groups]
  int32_t* sum;  // [rows, groups]
};

// One warp per group of a row.
static __global__ void __launch_bounds__(kThreads)
    QuantizeRows(const float* x, int64_t in, QuantizedActivations to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kPackedWarps + threadIdx.x / 32;
  if (at >= to.rows * to.groups) return;
  const int lane = threadIdx.x % 32;
  const int64_t i = at % to.groups * kPackGroup + lane;
  const float value = i < in ? x[at / to.groups * in + i] : 0.0f;
  const QuantizedGroup rounded = QuantizeGroup(value);
  to.q[at * kPackGroup + lane] = static_cast<int8_t>(rounded.q);
  if (lane == 0) {
    to.scale[at] = rounded.scale;
    to.sum[at] = rounded.sum;
  }
}

// sum + the dot product of four unsigned with four signed bytes.
__device__ __forceinline__ int DotBytes(uint32_t weights, uint32_t x, int sum) {
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(x), "r"(sum));
  return result;
}

// Returns the sum over the groups of this warp for output lane % 16 of a block; the warps of a
// thread block take groups round-robin. The two halves of a warp take the first and the second half
// of a group's words; their integer sums are added exactly.
template <bool kFourBits>
__device__ float SumPackedGroups(const PackedWeights& shape, const uint8_t* block,
                                 const QuantizedActivations& x, int64_t row) {
  float total = 0;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int output = lane % kPackOutputs, half = lane / kPackOutputs;
  constexpr int kWords = kFourBits ? 2 : 4;  // of a group, for one output and half
  for (int64_t g = warp; g < x.groups; g += kPackedWarps) {
    const uint32_t* const words =
        reinterpret_cast<const uint32_t*>(block + shape.numbers_at(g)) + output;
    uint32_t w[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) w[k] = words[(half * kWords + k) * kPackOutputs];
    const auto half_at = [&](int64_t at) {
      return __half2float(reinterpret_cast<const __half*>(block + at)[output]);
    };
    const float scale = half_at(shape.scales_at(g));
    const float minimum = kFourBits ? half_at(shape.minima_at(g)) : 0.0f;
    const int64_t group = row * x.groups + g;
    const uint32_t* const q =
        reinterpret_cast<const uint32_t*>(x.q + group * kPackGroup) + half * 4;
    int dot = 0;
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if constexpr (kFourBits) {
        dot = DotBytes(w[k] & 0x0f0f0f0fu, q[2 * k], dot);
        dot = DotBytes(w[k] >> 4 & 0x0f0f0f0fu, q[2 * k + 1], dot);
      } else {
        dot = DotBytes(w[k], q[k], dot);
      }
    }
    dot += __shfl_xor_sync(0xffffffffu, dot, kPackOutputs);
    const int sum = x.sum[group];
    if (!kFourBits) dot -= 128 * sum;
    total += static_cast<float>(dot) * (scale * x.scale[group]);
    if (kFourBits) total += minimum * (x.scale[group] * static_cast<float>(sum));
  }
  return total;
}

// Workspace of QuantizedActivations.
class QuantizedActivationsLayout {
 public:
  QuantizedActivationsLayout(int64_t rows, int64_t groups, WorkspaceLayout* layout)
      : groups_(groups),
        q_(layout->Add(static_cast<size_t>(rows * groups * kPackGroup))),
        scale_(layout->Add(static_cast<size_t>(rows * groups) * sizeof(float))),
        sum_(layout->Add(static_cast<size_t>(rows * groups) * sizeof(int32_t))) {}

  QuantizedActivations At(const KernelArgs& args, int64_t rows) const {
    return {rows, groups_, WorkspaceAt<int8_t>(args, q_), WorkspaceAt<float>(args, scale_),
            WorkspaceAt<int32_t>(args, sum_)};
  }

 private:
  int64_t groups_;
  size_t q_, scale_, sum_;
};

inline KernelStatus Round(const KernelArgs& args, const char* op, const QuantizedActivations& to) {
  const TensorView& x = args.inputs[0];
  const int64_t blocks = (to.rows * to.groups + kPackedWarps - 1) / kPackedWarps;
  QuantizeRows<<<static_cast<unsigned>(blocks), kThreads, 0, StreamOf(args)>>>(x.as<float>(),
                                                                               x.dims().back(), to);
  return LaunchStatus(op);
}

}  // namespace espalier
