// Layer norm, optionally of x + residual (fused add): one block per row. Batch-invariant: a row's
// result depends on that row alone.
#include "ops/cuda/copy.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/residual.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_layer_norm {

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
    ForwardKernel(const T* x, const T* scale, const T* bias, T* y, Residual<T> residual, int64_t n,
                  float epsilon) {
  x = residual.AddTo(x + blockIdx.x * n, blockIdx.x * n, n);
  if (y == nullptr) return;
  y += blockIdx.x * n;
  const Moments m = MomentsOf(x, n, epsilon);
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float value = (ToFloat(x[i]) - m.mean) * m.inverse * OrOne(scale, i);
    y[i] = FromFloat<T>(bias != nullptr ? value + ToFloat(bias[i]) : value);
  }
}

// Also leaves each row's moments for the gradient of scale. dx may be null; `more`, which may be
// null, is added to it.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(const T* x, const T* scale, const T* dy, T* dx, const T* more, Moments* moments,
                   int64_t n, float epsilon) {
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
    const float value = m.inverse * (g - mean - h * along);
    dx[i] = FromFloat<T>(more == nullptr ? value : value + ToFloat(more[blockIdx.x * n + i]));
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

// x, residual? (the operator has one), scale?, bias? -> y, sum?
KernelStatus Forward(const KernelArgs& args, bool has_residual, float epsilon) {
  const TensorView& x = args.inputs[0];
  if (x.num_elements() == 0) return KernelStatus::Ok();
  const size_t first = has_residual ? 2 : 1;
  return DispatchFloat(x.dtype(), "layer_norm", [&](auto type) {
    using T = typename decltype(type)::T;
    const auto input = [&](size_t i) {
      return Has(args.inputs, i) ? args.inputs[i].as<T>() : nullptr;
    };
    ForwardKernel<T><<<static_cast<unsigned>(RowsOf(x.dims())), kThreads, 0, StreamOf(args)>>>(
        x.as<T>(), input(first), input(first + 1), args.outputs[0].as<T>(),
        has_residual ? Residual<T>::Of(args) : Residual<T>(), x.dims().back(), epsilon);
    return LaunchStatus("layer_norm");
  });
}

struct BackwardOperands {
  const TensorView &x, &scale, &dy;
  const TensorView* more;  // see BackwardKernel
  const TensorView& dx;
  size_t parameters;  // dscale and dbias are the outputs from here on
};

// The workspace holds the moments of every row, then Reduce's partial sums.
KernelStatus RunBackward(const KernelArgs& args, const BackwardOperands& o, float epsilon) {
  const int64_t rows = RowsOf(o.x.dims()), n = o.x.dims().back();
  WorkspaceLayout layout;
  Moments* moments = WorkspaceAt<Moments>(args, layout.Add(rows * sizeof(Moments)));
  void* partial = WorkspaceAt(args, layout.bytes());
  return DispatchFloat(o.x.dtype(), "layer_norm_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    const auto output = [&](size_t i) {
      return Has(args.outputs, i) ? args.outputs[i].as<T>() : nullptr;
    };
    T *dscale = output(o.parameters), *dbias = output(o.parameters + 1);
    if (o.x.num_elements() > 0) {
      BackwardKernel<T><<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
          o.x.as<T>(), o.scale.as<T>(), o.dy.as<T>(), o.dx.as<T>(),
          o.more == nullptr ? nullptr : o.more->as<T>(), moments, n, epsilon);
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("layer_norm_grad"));
    }
    if (dscale != nullptr) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          Reduce(ColumnSums(rows, n), ScaleTerm<T>{o.x.as<T>(), o.dy.as<T>(), moments, n},
                 StoreScaled<T>{dscale, 1.0f}, partial, StreamOf(args), "layer_norm_grad"));
    }
    if (dbias == nullptr) return KernelStatus::Ok();
    return Reduce(ColumnSums(rows, n), BiasTerm<T>{o.dy.as<T>()}, StoreScaled<T>{dbias, 1.0f},
                  partial, StreamOf(args), "layer_norm_grad");
  });
}

// x, scale?, dy -> dx, dscale, dbias
KernelStatus Backward(const KernelArgs& args, float epsilon) {
  return RunBackward(
      args, {args.inputs[0], args.inputs[1], args.inputs[2], nullptr, args.outputs[0], 1}, epsilon);
}

// scale?, sum, dy?, dsum? -> dx, dresidual (alike), dscale, dbias
KernelStatus ResidualBackward(const KernelArgs& args, float epsilon) {
  const TensorView &dx = args.outputs[0], &dresidual = args.outputs[1];
  const TensorView& first = dx.present() ? dx : dresidual;
  if (!args.inputs[2].present()) {
    return OnlySumUsed(args.inputs[3], args, "residual_layer_norm_grad");
  }
  ESPALIER_KERNEL_RETURN_IF_ERROR(RunBackward(
      args, {args.inputs[1], args.inputs[0], args.inputs[2], &args.inputs[3], first, 2}, epsilon));
  if (!dx.present() || !dresidual.present()) return KernelStatus::Ok();
  return CopyWhole(dx, dresidual, args.stream, "residual_layer_norm_grad");
}

KernelFactory ForwardFactory(bool residual) {
  return [residual](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
    return MakeKernel(
        [residual, epsilon](const KernelArgs& args) { return Forward(args, residual, epsilon); });
  };
}

// `x`: the operand with the shape of x.
KernelFactory BackwardFactory(KernelStatus (*run)(const KernelArgs&, float), size_t x) {
  return [run, x](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[x].dtype, refusal)) return nullptr;
    const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
    const int64_t rows = RowsOf(spec.inputs[x].dims), n = spec.inputs[x].dims.back();
    WorkspaceLayout layout;
    layout.Add(rows * sizeof(Moments));
    layout.Add(ColumnSums(rows, n).WorkspaceBytes());
    return MakeKernel([run, epsilon](const KernelArgs& args) { return run(args, epsilon); },
                      layout.bytes());
  };
}

}  // namespace cuda_layer_norm

void RegisterLayerNormCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_layer_norm;
  registry.Add("layer_norm", ForwardFactory(false));
  registry.Add("layer_norm_grad", BackwardFactory(Backward, 0));
  registry.Add("residual_layer_norm", ForwardFactory(true));
  registry.Add("residual_layer_norm_grad", BackwardFactory(ResidualBackward, 1));
}

}  // namespace espalier
