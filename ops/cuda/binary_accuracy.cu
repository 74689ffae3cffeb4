#include "ops/cuda/loss.cuh"

namespace espalier {
namespace cuda_binary_accuracy {

struct IsRight {
  float threshold;
  __device__ float operator()(float x, float target) const {
    const bool right = (x > threshold) == (target > 0.5f);
    return right && !isnan(x) && !isnan(target) ? 1.0f : 0.0f;
  }
};

}  // namespace cuda_binary_accuracy

void RegisterBinaryAccuracyCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_binary_accuracy;
  registry.Add("binary_accuracy", ForF32([](const KernelSpec& spec) {
                 const float threshold = static_cast<float>(spec.attributes.Float("threshold"));
                 return ElementLoss(spec, IsRight{threshold}, DivisorOf(spec.attributes),
                                    "binary_accuracy");
               }));
}

}  // namespace espalier
