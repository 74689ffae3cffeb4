#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_swiglu {

template <typename T>
struct Forward {
  const T* gate;
  const T* up;
  T* y;
  __device__ void operator()(int64_t i) const {
    const float g = ToFloat(gate[i]);
    y[i] = FromFloat<T>(g / (1.0f + expf(-g)) * ToFloat(up[i]));
  }
};

// Either target may be null.
template <typename T>
struct Backward {
  const T* gate;
  const T* up;
  const T* dy;
  T* d_gate;
  T* d_up;
  __device__ void operator()(int64_t i) const {
    const float g = ToFloat(gate[i]), d = ToFloat(dy[i]);
    const float sigmoid = 1.0f / (1.0f + expf(-g));
    if (d_gate != nullptr) {
      d_gate[i] = FromFloat<T>(d * ToFloat(up[i]) * sigmoid * (1.0f + g * (1.0f - sigmoid)));
    }
    if (d_up != nullptr) d_up[i] = FromFloat<T>(d * (g * sigmoid));
  }
};

KernelStatus Run(const KernelArgs& args) {
  const TensorView &gate = args.inputs[0], &up = args.inputs[1], &y = args.outputs[0];
  return DispatchFloat(y.dtype(), "swiglu", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(y.num_elements(), Forward<T>{gate.as<T>(), up.as<T>(), y.as<T>()},
                   StreamOf(args), "swiglu");
  });
}

KernelStatus RunGradient(const KernelArgs& args) {
  const TensorView &gate = args.inputs[0], &up = args.inputs[1], &dy = args.inputs[2];
  return DispatchFloat(dy.dtype(), "swiglu_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    T* d_up = args.outputs.size() > 1 ? args.outputs[1].as<T>() : nullptr;
    return ForEach(dy.num_elements(),
                   Backward<T>{gate.as<T>(), up.as<T>(), dy.as<T>(), args.outputs[0].as<T>(), d_up},
                   StreamOf(args), "swiglu_grad");
  });
}

KernelFactory Factory(KernelStatus (*run)(const KernelArgs&)) {
  return [run](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    return MakeKernel(run);
  };
}

}  // namespace cuda_swiglu

void RegisterSwigluCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_swiglu;
  registry.Add("swiglu", Factory(Run));
  registry.Add("swiglu_grad", Factory(RunGradient));
}

}  // namespace espalier
