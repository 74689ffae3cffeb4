#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/activation.h"

namespace espalier {
namespace {

constexpr float kSqrt2OverPi = 0.797884560803f;
constexpr float kCubic = 0.044715f;

float ByTanh(float x) {
  return 0.5f * x * (1.0f + FastTanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
}

float ByTanhGradient(float x, float dy) {
  const float t = FastTanh(kSqrt2OverPi * (x + kCubic * x * x * x));
  const float slope = kSqrt2OverPi * (1.0f + 3.0f * kCubic * x * x);
  return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
}

}  // namespace

void RegisterGeluCpu(KernelRegistry& registry) {
  registry.Add("gelu", ViaF32([](const KernelSpec& spec, std::string*) {
                 const bool by_tanh = spec.attributes.String("approximate") == "tanh";
                 return MakeKernel([by_tanh](const KernelArgs& args) {
                   const float* x = args.inputs[0].as<float>();
                   const TensorView& y = args.outputs[0];
                   if (by_tanh) {
                     MapUnary([](float x) { return ByTanh(x); }, x, y.as<float>(),
                              y.num_elements());
                   } else {
                     MapUnary(Gelu(), x, y.as<float>(), y.num_elements());
                   }
                   return KernelStatus::Ok();
                 });
               }));
  registry.Add("gelu_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 const bool by_tanh = spec.attributes.String("approximate") == "tanh";
                 return MakeKernel([by_tanh](const KernelArgs& args) {
                   const float* x = args.inputs[0].as<float>();
                   const float* dy = args.inputs[1].as<float>();
                   const TensorView& dx = args.outputs[0];
                   if (by_tanh) {
                     MapBinary([](float x, float dy) { return ByTanhGradient(x, dy); }, x, dy,
                               dx.as<float>(), dx.num_elements());
                   } else {
                     MapBinary(GeluGradient(), x, dy, dx.as<float>(), dx.num_elements());
                   }
                   return KernelStatus::Ok();
                 });
               }));
}

}  // namespace espalier
