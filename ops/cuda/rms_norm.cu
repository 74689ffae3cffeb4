// RMS norm, optionally of x + residual (fused add): one block per row. Batch-invariant: a row's
// result depends on that row alone.
#include "ops/cuda/copy.h"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/residual.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"

namespace espalier {
namespace cuda_rms_norm {

template <typename T>
__device__ float InverseOf(const T* x, int64_t n, float epsilon) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float value = ToFloat(x[i]);
    sum += value * value;
  }
  return 1.0f / sqrtf(BlockSum(sum) / static_cast<float>(n) + epsilon);
}

// Values of a row that a thread keeps in registers, if the whole row fits: it is then read once.
// The weights are read after WaitOnDependentGrids, too: a kernel of the same step may write them.
constexpr int kHeld = 16;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    HeldForwardKernel(const T* x, const T* weight, T* y, Residual<T> residual, int n,
                      float epsilon) {
  float weights[kHeld], values[kHeld];
  LaunchDependentGrids();
  WaitOnDependentGrids();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * n;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = threadIdx.x + k * kThreads;
    values[k] = i < n ? residual.At(x, row + i) : 0.0f;
    weights[k] = i < n ? ToFloat(weight[i]) : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kHeld; ++k) sum += values[k] * values[k];
  const float inverse = 1.0f / sqrtf(BlockSum(sum) / static_cast<float>(n) + epsilon);
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (i >= n) break;
    if (residual.residual != nullptr) residual.sum[row + i] = FromFloat<T>(values[k]);
    if (y != nullptr) y[row + i] = FromFloat<T>(values[k] * inverse * weights[k]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(const T* x, const T* weight, T* y, Residual<T> residual, int64_t n,
                  float epsilon) {
  LaunchDependentGrids();
  WaitOnDependentGrids();
  x = residual.AddTo(x + blockIdx.x * n, blockIdx.x * n, n);
  if (y == nullptr) return;
  y += blockIdx.x * n;
  const float inverse = InverseOf(x, n, epsilon);
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    y[i] = FromFloat<T>(ToFloat(x[i]) * inverse * ToFloat(weight[i]));
  }
}

// Also leaves each row's 1 / rms for the gradient of the weight. dx may be null; `more`, which may
// be null, is added to it.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(const T* x, const T* weight, const T* dy, T* dx, const T* more, float* inverses,
                   int64_t n, float epsilon) {
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
    const float value = inverse * (ToFloat(dy[i]) * ToFloat(weight[i]) - ToFloat(x[i]) * along);
    dx[i] = FromFloat<T>(more == nullptr ? value : value + ToFloat(more[blockIdx.x * n + i]));
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

// x, residual? (the operator has one), weight -> y, sum?
KernelStatus Forward(const KernelArgs& args, bool has_residual, float epsilon) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[has_residual ? 2 : 1];
  if (x.num_elements() == 0) return KernelStatus::Ok();
  const unsigned rows = static_cast<unsigned>(RowsOf(x.dims()));
  return DispatchFloat(x.dtype(), "rms_norm", [&](auto type) {
    using T = typename decltype(type)::T;
    const int64_t n = x.dims().back();
    // If the graph does not use the sum, y holds it.
    const bool apart = !has_residual || !args.outputs[0].present() || args.outputs[1].present();
    if (n <= kHeld * kThreads && apart) {
      return LaunchWithPdl(HeldForwardKernel<T>, dim3(rows), kThreads, 0, StreamOf(args),
                           "rms_norm", x.as<T>(), weight.as<T>(), args.outputs[0].as<T>(),
                           has_residual ? Residual<T>::Of(args) : Residual<T>(),
                           static_cast<int>(n), epsilon);
    }
    return LaunchWithPdl(ForwardKernel<T>, dim3(rows), kThreads, 0, StreamOf(args), "rms_norm",
                         x.as<T>(), weight.as<T>(), args.outputs[0].as<T>(),
                         has_residual ? Residual<T>::Of(args) : Residual<T>(), x.dims().back(),
                         epsilon);
  });
}

struct BackwardOperands {
  const TensorView &x, &weight, &dy;
  const TensorView* more;  // see BackwardKernel
  const TensorView &dx, &dweight;
};

// The workspace holds 1 / rms of every row, then Reduce's partial sums.
KernelStatus RunBackward(const KernelArgs& args, const BackwardOperands& o, float epsilon) {
  const int64_t rows = RowsOf(o.x.dims()), n = o.x.dims().back();
  WorkspaceLayout layout;
  float* inverses = WorkspaceAt<float>(args, layout.Add(rows * sizeof(float)));
  void* partial = WorkspaceAt(args, layout.bytes());
  return DispatchFloat(o.x.dtype(), "rms_norm_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    if (o.x.num_elements() > 0) {
      BackwardKernel<T><<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
          o.x.as<T>(), o.weight.as<T>(), o.dy.as<T>(), o.dx.as<T>(),
          o.more == nullptr ? nullptr : o.more->as<T>(), inverses, n, epsilon);
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("rms_norm_grad"));
    }
    if (!o.dweight.present()) return KernelStatus::Ok();
    return Reduce(ColumnSums(rows, n), WeightTerm<T>{o.x.as<T>(), o.dy.as<T>(), inverses, n},
                  StoreScaled<T>{o.dweight.as<T>(), 1.0f}, partial, StreamOf(args),
                  "rms_norm_grad");
  });
}

// x, weight, dy -> dx, dweight
KernelStatus Backward(const KernelArgs& args, float epsilon) {
  return RunBackward(
      args,
      {args.inputs[0], args.inputs[1], args.inputs[2], nullptr, args.outputs[0], args.outputs[1]},
      epsilon);
}

// weight, sum, dy?, dsum? -> dx, dresidual (alike), dweight
KernelStatus ResidualBackward(const KernelArgs& args, float epsilon) {
  const TensorView &dx = args.outputs[0], &dresidual = args.outputs[1];
  const TensorView& first = dx.present() ? dx : dresidual;
  if (!args.inputs[2].present()) {
    return OnlySumUsed(args.inputs[3], args, "residual_rms_norm_grad");
  }
  ESPALIER_KERNEL_RETURN_IF_ERROR(RunBackward(
      args,
      {args.inputs[1], args.inputs[0], args.inputs[2], &args.inputs[3], first, args.outputs[2]},
      epsilon));
  if (!dx.present() || !dresidual.present()) return KernelStatus::Ok();
  return CopyWhole(dx, dresidual, args.stream, "residual_rms_norm_grad");
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
    layout.Add(rows * sizeof(float));
    layout.Add(ColumnSums(rows, n).WorkspaceBytes());
    return MakeKernel([run, epsilon](const KernelArgs& args) { return run(args, epsilon); },
                      layout.bytes());
  };
}

}  // namespace cuda_rms_norm

void RegisterRmsNormCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_rms_norm;
  registry.Add("rms_norm", ForwardFactory(false));
  registry.Add("rms_norm_grad", BackwardFactory(Backward, 0));
  registry.Add("residual_rms_norm", ForwardFactory(true));
  registry.Add("residual_rms_norm_grad", BackwardFactory(ResidualBackward, 1));
}

}  // namespace espalier
