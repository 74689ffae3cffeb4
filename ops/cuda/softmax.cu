// softmax and log_softmax along any axis: one block per line. A line's result depends on that line
// alone.
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_softmax {

struct Lines {
  int64_t outer, length, inner;

  Lines(const Dims& dims, int64_t axis) : outer(1), inner(1) {
    if (axis < 0) axis += static_cast<int64_t>(dims.size());
    length = dims[axis];
    for (int64_t d = 0; d < axis; ++d) outer *= dims[d];
    for (size_t d = axis + 1; d < dims.size(); ++d) inner *= dims[d];
  }
};

template <typename T, bool log>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(const T* x, T* y, int64_t length, int64_t inner) {
  const int64_t line = blockIdx.x;
  const int64_t start = line / inner * length * inner + line % inner;
  x += start;
  y += start;
  float most = -INFINITY;
  for (int64_t i = threadIdx.x; i < length; i += kThreads)
    most = fmaxf(most, ToFloat(x[i * inner]));
  most = BlockMax(most);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < length; i += kThreads)
    sum += expf(ToFloat(x[i * inner]) - most);
  sum = BlockSum(sum);
  const float rest = log ? logf(sum) : 1.0f / sum;
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    const float distance = ToFloat(x[i * inner]) - most;
    y[i * inner] = FromFloat<T>(log ? distance - rest : expf(distance) * rest);
  }
}

// Softmax: dx = y * (dy - sum(y * dy)). Its logarithm: dx = dy - e^y * sum(dy).
template <typename T, bool log>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(const T* y, const T* dy, T* dx, int64_t length, int64_t inner) {
  const int64_t line = blockIdx.x;
  const int64_t start = line / inner * length * inner + line % inner;
  y += start;
  dy += start;
  dx += start;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    sum += ToFloat(dy[i * inner]) * (log ? 1.0f : ToFloat(y[i * inner]));
  }
  sum = BlockSum(sum);
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    const float value = ToFloat(y[i * inner]), gradient = ToFloat(dy[i * inner]);
    dx[i * inner] = FromFloat<T>(log ? gradient - expf(value) * sum : value * (gradient - sum));
  }
}

template <bool log>
KernelStatus Forward(const KernelArgs& args, int64_t axis, const char* op) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  const Lines lines(x.dims(), axis);
  return DispatchFloat(x.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    ForwardKernel<T, log>
        <<<static_cast<unsigned>(lines.outer * lines.inner), kThreads, 0, StreamOf(args)>>>(
            x.as<T>(), y.as<T>(), lines.length, lines.inner);
    return LaunchStatus(op);
  });
}

// y, dy -> dx
template <bool log>
KernelStatus Backward(const KernelArgs& args, int64_t axis, const char* op) {
  const TensorView &y = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
  if (!dx.present() || dx.num_elements() == 0) return KernelStatus::Ok();
  const Lines lines(y.dims(), axis);
  return DispatchFloat(y.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    BackwardKernel<T, log>
        <<<static_cast<unsigned>(lines.outer * lines.inner), kThreads, 0, StreamOf(args)>>>(
            y.as<T>(), dy.as<T>(), dx.as<T>(), lines.length, lines.inner);
    return LaunchStatus(op);
  });
}

void Add(KernelRegistry& registry, const char* name,
         KernelStatus (*run)(const KernelArgs&, int64_t axis, const char* op)) {
  registry.Add(
      name, [name, run](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        return MakeKernel([name, run, axis = spec.attributes.Int("axis", -1)](
                              const KernelArgs& args) { return run(args, axis, name); });
      });
}

}  // namespace cuda_softmax

void RegisterSoftmaxCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_softmax;
  Add(registry, "softmax", Forward<false>);
  Add(registry, "softmax_grad", Backward<false>);
  Add(registry, "log_softmax", Forward<true>);
  Add(registry, "log_softmax_grad", Backward<true>);
}

}  // namespace espalier
