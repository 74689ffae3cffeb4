#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_divide {

struct Forward {
  FaultSink faults;

  template <typename T>
  __device__ T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, float>) {
      return a / b;
    } else {
      if (b != T()) return Quotient(a, b);
      faults.Report(FaultKind::kDivisor, 0, 0, 0);
      return T();
    }
  }
};

struct GradientA {
  __device__ float operator()(float dy, float a, float b) const { return dy / b; }
};

struct GradientB {
  __device__ float operator()(float dy, float a, float b) const { return -dy * (a / b) / b; }
};

}  // namespace cuda_divide

void RegisterDivideCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_divide;
  registry.Add(
      "divide",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesElements<Takes::kNumbers>(spec.inputs[0].dtype, refusal)) return nullptr;
        return MakeKernel([&contexts](const KernelArgs& args) {
          DeviceContext* context = nullptr;
          ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
          return RunBinary<Takes::kNumbers>(args, Forward{context->faults()}, "divide");
        });
      });
  AddBinaryGradient</*saves_inputs=*/true>(registry, "divide_grad", GradientA(), GradientB());
}

}  // namespace espalier
