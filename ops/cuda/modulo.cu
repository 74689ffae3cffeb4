#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_modulo {

// a - q * b, q = a / b towards zero: exactly. Fault: an integer b that is 0.
struct Truncating {
  FaultSink faults;

  template <typename T>
  __device__ T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, float>) {
      return fmodf(a, b);
    } else {
      if (b != T()) return Remainder(a, b);
      faults.Report(FaultKind::kModulus, 0, 0, 0);
      return T();
    }
  }
};

// The same with q rounded down.
struct Flooring {
  FaultSink faults;

  template <typename T>
  __device__ T operator()(T a, T b) const {
    return WithSignOf(b, Truncating{faults}(a, b));
  }
};

struct GradientA {
  __device__ float operator()(float dy, float, float) const { return dy; }
};

// dr/db with a constant quotient q: -q.
template <typename F>
struct GradientB {
  __device__ float operator()(float dy, float a, float b) const {
    return -dy * rintf((a - F{FaultSink()}(a, b)) / b);
  }
};

template <typename F>
KernelStatus Run(DeviceContexts& contexts, const KernelArgs& args) {
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  return RunBinary<Takes::kNumbers>(args, F{context->faults()}, "modulo");
}

template <typename F>
KernelStatus RunGradient(const KernelArgs& args) {
  return RunBinaryGradient</*saves_inputs=*/true>(args, GradientA(), GradientB<F>(), "modulo_grad");
}

bool Truncates(const KernelSpec& spec) { return spec.attributes.Bool("fmod"); }

}  // namespace cuda_modulo

void RegisterModuloCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_modulo;
  registry.Add(
      "modulo",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesElements<Takes::kNumbers>(spec.inputs[0].dtype, refusal)) return nullptr;
        const auto run = Truncates(spec) ? Run<Truncating> : Run<Flooring>;
        return MakeKernel([&contexts, run](const KernelArgs& args) { return run(contexts, args); });
      });
  registry.Add(
      "modulo_grad", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[2].dtype, refusal)) return nullptr;
        return MakeKernel(Truncates(spec) ? RunGradient<Truncating> : RunGradient<Flooring>,
                          SumBroadcastBytes(spec.outputs, spec.inputs[2].dims));
      });
}

}  // namespace espalier
