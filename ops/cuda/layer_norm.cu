// Layer norm: one block per row. A row's bits depend on the row alone.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"

namespace espalier {
namespace {

struct Moments {
  float mean, inverse;  // 1 / standard deviation
};

template <typename T>
__device__ Moments MomentsOf(const T* x, int64_t n, float epsilon) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += ToFloat(x[i]);
  const float mean = BlockSum(sum) / static_cast<float>(n);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float distance = ToFloat(x[i]) - mean;
    squares += distance * distance;
  }
  return {mean, 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(n) + epsilon)};
}

template <typename T>
__device__ float OrOne(const T* scale, int64_t i) {
  return scale != nullptr ? ToFloat(scale[i]) : 1.0f;
}

// scale and bias may be null.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(const T* x, const T* scale, const T* bias, T* y, int64_t n, float epsilon) {
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  const Moments m = MomentsOf(x, n, epsilon);
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float value = (ToFloat(x[i]) - m.mean) * m.inverse * OrOne(scale, i);
    y[i] = FromFloat<T>(bias != nullptr ? value + ToFloat(bias[i]) : value);
  }
}

// Also leaves each row's moments for the gradient of scale. dx may be null.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(const T* x, const T* scale, const T* dy, T* dx, Moments* moments, int64_t n,
                   float epsilon) {
  x += blockIdx.x * n;
  dy += blockIdx.x * n;
  const Moments m = MomentsOf(x, n, epsilon);
  if (threadIdx.x == 0) moments[blockIdx.x] = m;
  if (dx == nullptr) return;
  dx += blockIdx.x * n;
  // With g = dy * scale and h = (x - mean) / sd: dx = (g - mean(g) - h * mean(g * h)) / sd.
  float sum = 0, dot = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float g = ToFloat(dy[i]) * OrOne(scale, i);
    sum += g;
    dot += g * (ToFloat(x[i]) - m.mean) * m.inverse;
  }
  const float mean = BlockSum(sum) / static_cast<float>(n);
  const float along = BlockSum(dot) / static_cast<float>(n);
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float g = ToFloat(dy[i]) * OrOne(scale, i);
    const float h = (ToFloat(x[i]) - m.mean) * m.inverse;
    dx[i] = FromFloat<T>(m.inverse * (g - mean - h * along));
  }
}

template <typename T>
struct ScaleTerm {
  const T* x;
  const T* dy;
  const Moments* moments;
  int64_t n;
  __device__ float operator()(int64_t i) const {
    const Moments m = moments[i / n];
    return ToFloat(dy[i]) * ((ToFloat(x[i]) - m.mean) * m.inverse);
  }
};

template <typename T>
struct BiasTerm {
  const T* dy;
  __device__ float operator()(int64_t i) const { return ToFloat(dy[i]); }
};

ReduceShape ColumnSums(int64_t rows, int64_t n) {
  return ReduceShape::Make({rows, n}, {true, false});
}

KernelStatus Forward(const KernelArgs& args, float epsilon) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  return DispatchFloat(x.dtype(), "layer_norm", [&](auto type) {
    using T = typename decltype(type)::T;
    const auto input = [&](size_t i) {
      return Has(args.inputs, i) ? args.inputs[i].as<T>() : nullptr;
    };
    ForwardKernel<T><<<static_cast<unsigned>(RowsOf(x.dims())), kThreads, 0, StreamOf(args)>>>(
        x.as<T>(), input(1), input(2), y.as<T>(), x.dims().back(), epsilon);
    return LaunchStatus("layer_norm");
  });
}

// x, scale?, dy -> dx, dscale, dbias. The workspace holds the moments of every row, then Reduce's
// partial sums.
KernelStatus Backward(const KernelArgs& args, float epsilon) {
  const TensorView &x = args.inputs[0], &dy = args.inputs[2];
  const int64_t rows = RowsOf(x.dims()), n = x.dims().back();
  WorkspaceLayout layout;
  Moments* moments = WorkspaceAt<Moments>(args, layout.Add(rows * sizeof(Moments)));
  void* partial = WorkspaceAt(args, layout.bytes());
  return DispatchFloat(x.dtype(), "layer_norm_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    const auto output = [&](size_t i) {
      return Has(args.outputs, i) ? args.outputs[i].as<T>() : nullptr;
    };
    if (x.num_elements() > 0) {
      BackwardKernel<T><<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
          x.as<T>(), args.inputs[1].as<T>(), dy.as<T>(), output(0), moments, n, epsilon);
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("layer_norm_grad"));
    }
    if (output(1) != nullptr) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          Reduce(ColumnSums(rows, n), ScaleTerm<T>{x.as<T>(), dy.as<T>(), moments, n},
                 StoreScaled<T>{output(1), 1.0f}, partial, StreamOf(args), "layer_norm_grad"));
    }
    if (output(2) == nullptr) return KernelStatus::Ok();
    return Reduce(ColumnSums(rows, n), BiasTerm<T>{dy.as<T>()}, StoreScaled<T>{output(2), 1.0f},
                  partial, StreamOf(args), "layer_norm_grad");
  });
}

}  // namespace

void RegisterLayerNormCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add(
      "layer_norm", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
        return MakeKernel([epsilon](const KernelArgs& args) { return Forward(args, epsilon); });
      });
  registry.Add("layer_norm_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
                 const int64_t rows = RowsOf(spec.inputs[0].dims), n = spec.inputs[0].dims.back();
                 WorkspaceLayout layout;
                 layout.Add(rows * sizeof(Moments));
                 layout.Add(ColumnSums(rows, n).WorkspaceBytes());
                 return MakeKernel(
                     [epsilon](const KernelArgs& args) { return Backward(args, epsilon); },
                     layout.bytes());
               });
}

}  // namespace espalier
