// RMS norm: one block per row. A row's bits depend on the row alone.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"

namespace espalier {
namespace {

template <typename T>
__device__ float InverseOf(const T* x, int64_t n, float epsilon) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float value = ToFloat(x[i]);
    sum += value * value;
  }
  return 1.0f / sqrtf(BlockSum(sum) / static_cast<float>(n) + epsilon);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(const T* x, const T* weight, T* y, int64_t n, float epsilon) {
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  const float inverse = InverseOf(x, n, epsilon);
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    y[i] = FromFloat<T>(ToFloat(x[i]) * inverse * ToFloat(weight[i]));
  }
}

// Also leaves each row's 1 / rms for the gradient of the weight. dx may be null.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(const T* x, const T* weight, const T* dy, T* dx, float* inverses, int64_t n,
                   float epsilon) {
  x += blockIdx.x * n;
  dy += blockIdx.x * n;
  const float inverse = InverseOf(x, n, epsilon);
  if (threadIdx.x == 0) inverses[blockIdx.x] = inverse;
  if (dx == nullptr) return;
  dx += blockIdx.x * n;
  // With g = dy * weight: dx = g / rms - x * mean(g * x) / rms^3.
  float dot = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    dot += ToFloat(dy[i]) * ToFloat(weight[i]) * ToFloat(x[i]);
  }
  const float along = BlockSum(dot) / static_cast<float>(n) * inverse * inverse;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    dx[i] = FromFloat<T>(inverse * (ToFloat(dy[i]) * ToFloat(weight[i]) - ToFloat(x[i]) * along));
  }
}

template <typename T>
struct WeightTerm {
  const T* x;
  const T* dy;
  const float* inverses;
  int64_t n;
  __device__ float operator()(int64_t i) const {
    return ToFloat(dy[i]) * (ToFloat(x[i]) * inverses[i / n]);
  }
};

ReduceShape ColumnSums(int64_t rows, int64_t n) {
  return ReduceShape::Make({rows, n}, {true, false});
}

KernelStatus Forward(const KernelArgs& args, float epsilon) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  const unsigned rows = static_cast<unsigned>(RowsOf(x.dims()));
  return DispatchFloat(x.dtype(), "rms_norm", [&](auto type) {
    using T = typename decltype(type)::T;
    ForwardKernel<T><<<rows, kThreads, 0, StreamOf(args)>>>(x.as<T>(), args.inputs[1].as<T>(),
                                                            y.as<T>(), x.dims().back(), epsilon);
    return LaunchStatus("rms_norm");
  });
}

// x, weight, dy -> dx, dweight. The workspace holds 1 / rms of every row, then Reduce's partial
// sums.
KernelStatus Backward(const KernelArgs& args, float epsilon) {
  const TensorView &x = args.inputs[0], &dy = args.inputs[2];
  const int64_t rows = RowsOf(x.dims()), n = x.dims().back();
  WorkspaceLayout layout;
  float* inverses = WorkspaceAt<float>(args, layout.Add(rows * sizeof(float)));
  void* partial = WorkspaceAt(args, layout.bytes());
  return DispatchFloat(x.dtype(), "rms_norm_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    if (x.num_elements() > 0) {
      BackwardKernel<T><<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
          x.as<T>(), args.inputs[1].as<T>(), dy.as<T>(), args.outputs[0].as<T>(), inverses, n,
          epsilon);
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("rms_norm_grad"));
    }
    if (!Has(args.outputs, 1)) return KernelStatus::Ok();
    return Reduce(ColumnSums(rows, n), WeightTerm<T>{x.as<T>(), dy.as<T>(), inverses, n},
                  StoreScaled<T>{args.outputs[1].as<T>(), 1.0f}, partial, StreamOf(args),
                  "rms_norm_grad");
  });
}

}  // namespace

void RegisterRmsNormCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add(
      "rms_norm", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
        return MakeKernel([epsilon](const KernelArgs& args) { return Forward(args, epsilon); });
      });
  registry.Add(
      "rms_norm_grad", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
        const int64_t rows = RowsOf(spec.inputs[0].dims), n = spec.inputs[0].dims.back();
        WorkspaceLayout layout;
        layout.Add(rows * sizeof(float));
        layout.Add(ColumnSums(rows, n).WorkspaceBytes());
        return MakeKernel([epsilon](const KernelArgs& args) { return Backward(args, epsilon); },
                          layout.bytes());
      });
}

}  // namespace espalier
