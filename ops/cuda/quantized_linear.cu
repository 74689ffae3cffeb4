// quantized_linear. The warps of a thread block take the groups of 16 outputs in turns, and their
// sums are added from first to last: an element's bits do not depend on the number of rows.
#include "ops/cuda/activation.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/packed.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"

namespace espalier {
namespace cuda_quantized_linear {

constexpr int kWarps = kThreads / 32;
constexpr int kRows = 4;  // that pass over the weights together

template <bool kFourBits, typename F>
__global__ void __launch_bounds__(kThreads)
    ProductKernel(PackedWeights shape, const uint8_t* weights, PackedRows x, const float* bias,
                  float* y, F activation) {
  __shared__ float parts[kWarps][kRows][kPackOutputs];
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kRows;
  float total[kRows] = {};
  AddPackedGroups<kFourBits, kRows>(shape, weights + blockIdx.x * shape.block_bytes(), x, row0,
                                    total);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane < kPackOutputs) {
    for (int r = 0; r < kRows; ++r) parts[warp][r][lane] = total[r];
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

KernelStatus RunPacked(const KernelArgs& args, const PackedWeights& shape, const PackedRows& to,
                       Activation activation) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (to.rows == 0) return KernelStatus::Ok();
  ESPALIER_KERNEL_RETURN_IF_ERROR(Round(args, "quantized_linear", to));
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
    *refusal =
        "packed weights can be cut into blocks of 16 outputs and between groups of 32 inputs only";
    return nullptr;
  }
  const int64_t rows = RowsOf(x.dims), groups = shape.groups();
  WorkspaceLayout layout;
  const PackedRowsLayout rounded(rows, groups, &layout);
  return MakeKernel(
      [=](const KernelArgs& args) {
        return RunPacked(args, shape, rounded.At(args, RowsOf(args.inputs[0].dims())), activation);
      },
      layout.bytes());
}

}  // namespace cuda_quantized_linear

void RegisterQuantizedLinearCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_quantized_linear;
  registry.Add("quantized_linear", Make);
}

}  // namespace espalier
