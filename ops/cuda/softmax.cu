// Softmax along any axis: one block per line. A line's bits depend on the line alone.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"

namespace espalier {
namespace {

struct Lines {
  int64_t outer, length, inner;

  Lines(const Dims& dims, int64_t axis) : outer(1), inner(1) {
    if (axis < 0) axis += static_cast<int64_t>(dims.size());
    length = dims[axis];
    for (int64_t d = 0; d < axis; ++d) outer *= dims[d];
    for (size_t d = axis + 1; d < dims.size(); ++d) inner *= dims[d];
  }
};

template <typename T>
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
  const float scale = 1.0f / BlockSum(sum);
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    y[i * inner] = FromFloat<T>(expf(ToFloat(x[i * inner]) - most) * scale);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(const T* y, const T* dy, T* dx, int64_t length, int64_t inner) {
  const int64_t line = blockIdx.x;
  const int64_t start = line / inner * length * inner + line % inner;
  y += start;
  dy += start;
  dx += start;
  float dot = 0;
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    dot += ToFloat(y[i * inner]) * ToFloat(dy[i * inner]);
  }
  dot = BlockSum(dot);
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    dx[i * inner] = FromFloat<T>(ToFloat(y[i * inner]) * (ToFloat(dy[i * inner]) - dot));
  }
}

}  // namespace

void RegisterSoftmaxCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add(
      "softmax", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        return MakeKernel([axis = spec.attributes.Int("axis", -1)](const KernelArgs& args) {
          const TensorView &x = args.inputs[0], &y = args.outputs[0];
          if (y.num_elements() == 0) return KernelStatus::Ok();
          const Lines lines(x.dims(), axis);
          return DispatchFloat(x.dtype(), "softmax", [&](auto type) {
            using T = typename decltype(type)::T;
            ForwardKernel<T>
                <<<static_cast<unsigned>(lines.outer * lines.inner), kThreads, 0, StreamOf(args)>>>(
                    x.as<T>(), y.as<T>(), lines.length, lines.inner);
            return LaunchStatus("softmax");
          });
        });
      });
  // y, dy -> dx = y * (dy - sum(y * dy))
  registry.Add(
      "softmax_grad", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        return MakeKernel([axis = spec.attributes.Int("axis", -1)](const KernelArgs& args) {
          const TensorView &y = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
          if (!dx.present() || dx.num_elements() == 0) return KernelStatus::Ok();
          const Lines lines(y.dims(), axis);
          return DispatchFloat(y.dtype(), "softmax_grad", [&](auto type) {
            using T = typename decltype(type)::T;
            BackwardKernel<T>
                <<<static_cast<unsigned>(lines.outer * lines.inner), kThreads, 0, StreamOf(args)>>>(
                    y.as<T>(), dy.as<T>(), dx.as<T>(), lines.length, lines.inner);
            return LaunchStatus("softmax_grad");
          });
        });
      });
}

}  // namespace espalier
