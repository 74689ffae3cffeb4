#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/math/activation.cuh"

namespace espalier {
namespace cuda_gelu {

constexpr float kSqrt2OverPi = 0.797884560803f;
constexpr float kCubic = 0.044715f;

struct ByTanh {
  __device__ float operator()(float x) const {
    return 0.5f * x * (1.0f + tanhf(kSqrt2OverPi * (x + kCubic * x * x * x)));
  }
};

struct ByTanhGradient {
  __device__ float operator()(float x, float dy) const {
    const float t = tanhf(kSqrt2OverPi * (x + kCubic * x * x * x));
    const float slope = kSqrt2OverPi * (1.0f + 3.0f * kCubic * x * x);
    return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
  }
};

bool IsTanh(const KernelSpec& spec) { return spec.attributes.String("approximate") == "tanh"; }

}  // namespace cuda_gelu

void RegisterGeluCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_gelu;
  registry.Add("gelu", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    return MakeKernel([by_tanh = IsTanh(spec)](const KernelArgs& args) {
      return by_tanh ? RunUnary(args, ByTanh(), "gelu") : RunUnary(args, Gelu(), "gelu");
    });
  });
  registry.Add("gelu_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel([by_tanh = IsTanh(spec)](const KernelArgs& args) {
                   return by_tanh ? RunUnaryGradient(args, ByTanhGradient(), "gelu_grad")
                                  : RunUnaryGradient(args, GeluGradient(), "gelu_grad");
                 });
               });
}

}  // namespace espalier
