#include "ops/cpu/elementwise.h"
#include "ops/kernel/clip_bounds.h"

namespace espalier {
namespace {

// min(max(x, low), high); NaN stays.
template <typename T>
struct Clip {
  ClipBounds<T> bounds;

  T operator()(T x) const {
    const T raised = x < bounds.low ? bounds.low : x;
    return raised > bounds.high ? bounds.high : raised;
  }
};

struct ClipGradient {
  ClipBounds<float> bounds;

  float operator()(float x, float dy) const {
    return (x >= bounds.low) & (x <= bounds.high) ? dy : 0.0f;
  }
};

}  // namespace

void RegisterClipCpu(KernelRegistry& registry) {
  registry.Add("clip", ViaF32([](const KernelSpec& spec, std::string*) {
                 return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
                   const TensorView &x = args.inputs[0], &y = args.outputs[0];
                   const auto run = [&](auto element, auto) {
                     using T = decltype(element);
                     const Clip<T> clip{ClipBounds<T>::Of(attributes)};
                     MapUnary(clip, x.as<T>(), y.as<T>(), y.num_elements());
                   };
                   const bool taken = WithElements<Takes::kNumbers>(
                       x.dtype(), [](auto) {}, run);
                   return taken ? KernelStatus::Ok() : UnsupportedType("clip", x.dtype());
                 });
               }));
  AddUnaryGradientWith(registry, "clip", [](const Attributes& attributes) {
    return ClipGradient{ClipBounds<float>::Of(attributes)};
  });
}

}  // namespace espalier
