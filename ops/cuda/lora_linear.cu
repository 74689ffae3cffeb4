// lora_linear: two products per row through the workspace; one warp per element of each, whose
// lanes always take the same terms in the same order, so it is batch-invariant. For decoding, where
// reading the adapters dominates.
#include <algorithm>
#include <cstdint>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_lora_linear {

constexpr int kWarps = 8;

// y[row] = matrices[adapter[row]] x[row]; 0 where the row has no adapter.
template <typename X, typename T, typename Y>
struct Product {
  const X* x;         // [rows, in]
  const T* matrices;  // [adapters, out, in]
  const int32_t* adapter;
  Y* y;  // [rows, out]
  int64_t adapters, out, in;
  FaultSink faults;
};

// Grid: rows by groups of kWarps columns.
template <typename X, typename T, typename Y>
__global__ void __launch_bounds__(32 * kWarps) ProductKernel(Product<X, T, Y> p) {
  const int lane = threadIdx.x % 32;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32;
  if (column >= p.out) return;
  const int64_t row = blockIdx.x;
  int64_t adapter = p.adapter[row];
  if (adapter < -1 || adapter >= p.adapters) {
    p.faults.Report(FaultKind::kAdapter, row, adapter, p.adapters);
    adapter = -1;
  }
  float sum = 0;
  if (adapter >= 0) {
    const X* x = p.x + row * p.in;
    const T* weights = p.matrices + (adapter * p.out + column) * p.in;
    for (int64_t i = lane; i < p.in; i += 32) sum = fmaf(ToFloat(x[i]), ToFloat(weights[i]), sum);
    sum = WarpReduce<SumOp>(sum);
  }
  if (lane == 0) p.y[row * p.out + column] = FromFloat<Y>(sum);
}

template <typename X, typename T, typename Y>
KernelStatus Launch(const Product<X, T, Y>& product, int64_t rows, cudaStream_t stream) {
  if (product.out == 0) return KernelStatus::Ok();
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>((product.out + kWarps - 1) / kWarps));
  ProductKernel<X, T, Y><<<grid, 32 * kWarps, 0, stream>>>(product);
  return LaunchStatus("lora_linear");
}

KernelStatus Run(DeviceContexts& contexts, const KernelArgs& args) {
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  const TensorView &x = args.inputs[0], &b = args.inputs[2];
  if (!args.outputs[0].present() || args.outputs[0].num_elements() == 0) return KernelStatus::Ok();
  return DispatchFloat(x.dtype(), "lora_linear", [&](auto type) {
    using T = typename decltype(type)::T;
    const int64_t rows = x.dims()[0], in = x.dims()[1];
    const int64_t adapters = b.dims()[0], out = b.dims()[1], rank = b.dims()[2];
    float* const narrow = WorkspaceAt<float>(args, 0);
    const int32_t* const adapter = args.inputs[3].as<int32_t>();
    const Product<T, T, float> down{
        x.as<T>(), args.inputs[1].as<T>(), adapter, narrow, adapters, rank, in, context->faults()};
    ESPALIER_KERNEL_RETURN_IF_ERROR(Launch(down, rows, StreamOf(args)));
    const Product<float, T, T> up{narrow,   b.as<T>(), adapter, args.outputs[0].as<T>(),
                                  adapters, out,       rank,    context->faults()};
    return Launch(up, rows, StreamOf(args));
  });
}

}  // namespace cuda_lora_linear

void RegisterLoraLinearCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_lora_linear;
  registry.Add(
      "lora_linear",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        const Dims& b = spec.inputs[2].dims;
        if ((std::max(b[1], b[2]) + kWarps - 1) / kWarps > 65535) {
          *refusal = "more than " + std::to_string(65535 * kWarps) + " outputs";
          return nullptr;
        }
        const size_t bytes = static_cast<size_t>(spec.inputs[0].dims[0] * b[2]) * sizeof(float);
        return MakeKernel([&contexts](const KernelArgs& args) { return Run(contexts, args); },
                          bytes);
      });
}

}  // namespace espalier
