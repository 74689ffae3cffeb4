#include "ops/cuda/elementwise.cuh"
#include "ops/kernel/clip_bounds.h"

namespace espalier {
namespace cuda_clip {

// min(max(x, low), high); NaN stays. Value is what the formula sees of an element.
template <typename Value>
struct Clip {
  ClipBounds<Value> bounds;
  __device__ Value operator()(Value x) const {
    const Value raised = x < bounds.low ? bounds.low : x;
    return raised > bounds.high ? bounds.high : raised;
  }
};

struct ClipGradient {
  ClipBounds<float> bounds;
  __device__ float operator()(float x, float dy) const {
    return x >= bounds.low && x <= bounds.high ? dy : 0.0f;
  }
};

KernelStatus Run(const KernelArgs& args, const Attributes& attributes) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (!y.present()) return KernelStatus::Ok();
  return DispatchElements<Takes::kNumbers>(x.dtype(), "clip", [&](auto type) {
    using T = typename decltype(type)::T;
    using F = Clip<Seen<T>>;
    return ForEach(y.num_elements(),
                   MapUnary<T, T, F>{x.as<T>(), y.as<T>(), F{ClipBounds<Seen<T>>::Of(attributes)}},
                   StreamOf(args), "clip");
  });
}

}  // namespace cuda_clip

void RegisterClipCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_clip;
  registry.Add("clip", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesElements<Takes::kNumbers>(spec.inputs[0].dtype, refusal)) return nullptr;
    return MakeKernel(
        [attributes = spec.attributes](const KernelArgs& args) { return Run(args, attributes); });
  });
  AddUnaryGradientWith(registry, "clip", [](const Attributes& attributes) {
    return ClipGradient{ClipBounds<float>::Of(attributes)};
  });
}

}  // namespace espalier
