// quantized_linear. A warp holds the 16 outputs of a block twice: its halves take the first and the
// second half of the words of a group, whose whole numbers are then added, exactly. The warps of a
// thread block take the groups in turns, and their sums are added from first to last: an element's
// bits do not depend on the number of rows.
#include "ops/cuda/activation.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {
namespace {

constexpr int kWarps = kThreads / 32;
constexpr int kRows = 4;  // that pass over the weights together

struct Rows {
  int64_t rows, groups;
  int8_t* q;     // [rows, groups * 32]
  float* scale;  // [rows, groups]
  int32_t* sum;  // [rows, groups]
};

// One warp per group of a row.
__global__ void __launch_bounds__(kThreads) RoundRows(const float* x, int64_t in, Rows to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (at >= to.rows * to.groups) return;
  const int lane = threadIdx.x % 32;
  const int64_t i = at % to.groups * kPackGroup + lane;
  const float value = i < in ? x[at / to.groups * in + i] : 0.0f;
  const bool finite = __all_sync(0xffffffffu, isfinite(value));
  const float largest = WarpReduce<MaxOp>(finite ? fabsf(value) : 0.0f);
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  const int q = finite ? __float2int_rn(value * inverse) : 0;
  to.q[at * kPackGroup + lane] = static_cast<int8_t>(q);
  const int sum = __reduce_add_sync(0xffffffffu, q);
  if (lane == 0) {
    to.scale[at] = !finite ? nanf("") : inverse > 0.0f ? largest / 127.0f : 0.0f;
    to.sum[at] = sum;
  }
}

// Products of four unsigned with four signed bytes, added to `sum`.
__device__ __forceinline__ int DotBytes(uint32_t weights, uint32_t x, int sum) {
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(x), "r"(sum));
  return result;
}

template <bool kFourBits, typename F>
__global__ void __launch_bounds__(kThreads)
    ProductKernel(PackedWeights shape, const uint8_t* weights, Rows x, const float* bias, float* y,
                  F activation) {
  __shared__ float parts[kWarps][kRows][kPackOutputs];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int output = lane % kPackOutputs, half = lane / kPackOutputs;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kRows;
  const uint8_t* const block = weights + blockIdx.x * shape.block_bytes();
  constexpr int kWords = kFourBits ? 2 : 4;  // of a group, for one output and half
  float total[kRows] = {};
  for (int64_t g = warp; g < x.groups; g += kWarps) {
    const uint32_t* const words =
        reinterpret_cast<const uint32_t*>(block + g * shape.group_bytes()) + output;
    uint32_t w[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) w[k] = words[(half * kWords + k) * kPackOutputs];
    const int64_t at = g * kPackOutputs + output;
    const float scale =
        __half2float(reinterpret_cast<const __half*>(block + shape.scales_offset())[at]);
    const float minimum =
        kFourBits ? __half2float(reinterpret_cast<const __half*>(block + shape.minima_offset())[at])
                  : 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row0 + r >= x.rows) break;
      const int64_t group = (row0 + r) * x.groups + g;
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
      total[r] += static_cast<float>(dot) * (scale * x.scale[group]);
      if (kFourBits) total[r] += minimum * (x.scale[group] * static_cast<float>(sum));
    }
  }
  if (half == 0) {
    for (int r = 0; r < kRows; ++r) parts[warp][r][output] = total[r];
  }
  __syncthreads();
  const int r = threadIdx.x / kPackOutputs, o = threadIdx.x % kPackOutputs;
  const int64_t row = row0 + r, column = static_cast<int64_t>(blockIdx.x) * kPackOutputs + o;
  if (r >= kRows || row >= x.rows || column >= shape.out) return;
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += parts[w][r][o];
  if (bias != nullptr) sum += bias[column];
  y[row * shape.out + column] = activation(sum);
}

// Weights of bf16, rows of f32: one warp per output and kRows rows.
template <typename F>
__global__ void __launch_bounds__(kThreads)
    NarrowKernel(int64_t rows, int64_t in, int64_t out, const float* x, const __nv_bfloat16* weight,
                 const float* bias, float* y, F activation) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kRows;
  if (column >= out) return;
  float total[kRows] = {};
  for (int64_t i = threadIdx.x % 32; i < in; i += 32) {
    const float w = ToFloat(weight[column * in + i]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row0 + r < rows) total[r] += w * x[(row0 + r) * in + i];
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpReduce<SumOp>(total[r]);
    if (threadIdx.x % 32 == 0 && row0 + r < rows) {
      y[(row0 + r) * out + column] = activation(bias != nullptr ? sum + bias[column] : sum);
    }
  }
}

unsigned Ceil(int64_t n, int64_t by) { return static_cast<unsigned>((n + by - 1) / by); }

KernelStatus RunNarrow(const KernelArgs& args, Activation activation) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1], &y = args.outputs[0];
  const int64_t rows = RowsOf(x.dims()), out = weight.dims()[0], in = weight.dims()[1];
  if (rows == 0) return KernelStatus::Ok();
  const float* const bias = Has(args.inputs, 2) ? args.inputs[2].as<float>() : nullptr;
  return DispatchActivation(activation, [&](auto f, auto) {
    NarrowKernel<<<dim3(Ceil(out, kWarps), Ceil(rows, kRows)), kThreads, 0, StreamOf(args)>>>(
        rows, in, out, x.as<float>(), weight.as<__nv_bfloat16>(), bias, y.as<float>(), f);
    return LaunchStatus("quantized_linear");
  });
}

KernelStatus RunPacked(const KernelArgs& args, const PackedWeights& shape, Rows to,
                       Activation activation) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (to.rows == 0) return KernelStatus::Ok();
  RoundRows<<<Ceil(to.rows * to.groups, kWarps), kThreads, 0, StreamOf(args)>>>(x.as<float>(),
                                                                                shape.in, to);
  ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("quantized_linear"));
  const float* const bias = Has(args.inputs, 2) ? args.inputs[2].as<float>() : nullptr;
  const dim3 grid(static_cast<unsigned>(shape.blocks()), Ceil(to.rows, kRows));
  return DispatchActivation(activation, [&](auto f, auto) {
    const uint8_t* const weights = args.inputs[1].as<uint8_t>();
    if (shape.bits == 4) {
      ProductKernel<true>
          <<<grid, kThreads, 0, StreamOf(args)>>>(shape, weights, to, bias, y.as<float>(), f);
    } else {
      ProductKernel<false>
          <<<grid, kThreads, 0, StreamOf(args)>>>(shape, weights, to, bias, y.as<float>(), f);
    }
    return LaunchStatus("quantized_linear");
  });
}

std::unique_ptr<Kernel> Make(const KernelSpec& spec, std::string* refusal) {
  const Activation activation = ActivationOf(spec.attributes);
  const int bits = static_cast<int>(spec.attributes.Int("bits"));
  if (bits == 16) {
    return MakeKernel([activation](const KernelArgs& args) { return RunNarrow(args, activation); });
  }
  const TensorSpec &x = spec.inputs[0], &y = spec.outputs[0];
  const PackedWeights shape{bits, y.dims.back(), x.dims.back()};
  if (spec.inputs[1].dims != Dims{shape.blocks(), shape.block_bytes()}) {
    *refusal = "packed weights can be cut into blocks of 16 outputs and between groups of 32 inputs only";
    return nullptr;
  }
  const int64_t rows = RowsOf(x.dims), groups = shape.groups();
  WorkspaceLayout layout;
  const size_t q = layout.Add(static_cast<size_t>(rows * groups * kPackGroup));
  const size_t scale = layout.Add(static_cast<size_t>(rows * groups) * sizeof(float));
  const size_t sum = layout.Add(static_cast<size_t>(rows * groups) * sizeof(int32_t));
  return MakeKernel(
      [=](const KernelArgs& args) {
        return RunPacked(args, shape,
                         {RowsOf(args.inputs[0].dims()), groups, WorkspaceAt<int8_t>(args, q),
                          WorkspaceAt<float>(args, scale), WorkspaceAt<int32_t>(args, sum)},
                         activation);
      },
      layout.bytes());
}

}  // namespace

void RegisterQuantizedLinearCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("quantized_linear", Make);
}

}  // namespace espalier
