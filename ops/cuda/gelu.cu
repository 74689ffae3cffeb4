#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

constexpr float kSqrt2OverPi = 0.797884560803f;
constexpr float kCubic = 0.044715f;
constexpr float kInverseSqrt2 = 0.707106781187f;
constexpr float kInverseSqrt2Pi = 0.398942280401f;

struct ByError {
  // erfcf keeps the lower tail's relative precision.
  __device__ float operator()(float x) const { return 0.5f * x * erfcf(-x * kInverseSqrt2); }
};

struct ByErrorGradient {
  __device__ float operator()(float x, float dy) const {
    const float cumulative = 0.5f * erfcf(-x * kInverseSqrt2);
    const float density = kInverseSqrt2Pi * expf(-0.5f * x * x);
    // Where the density has underflowed x may be infinite.
    return dy * (cumulative + (density > 0.0f ? x * density : density));
  }
};

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

}  // namespace

void RegisterGeluCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("gelu", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    return MakeKernel([by_tanh = IsTanh(spec)](const KernelArgs& args) {
      return by_tanh ? RunUnary(args, ByTanh(), "gelu") : RunUnary(args, ByError(), "gelu");
    });
  });
  registry.Add("gelu_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel([by_tanh = IsTanh(spec)](const KernelArgs& args) {
                   return by_tanh ? RunUnaryGradient(args, ByTanhGradient(), "gelu_grad")
                                  : RunUnaryGradient(args, ByErrorGradient(), "gelu_grad");
                 });
               });
}

}  // namespace espalier
