#include "ops/cpu/loss.h"

namespace espalier {

void RegisterBinaryAccuracyCpu(KernelRegistry& registry) {
  registry.Add("binary_accuracy", [](const KernelSpec& spec, std::string*) {
    const float threshold = static_cast<float>(spec.attributes.Float("threshold"));
    return ElementLoss(
        [threshold](float x, float target) {
          const bool right = (x > threshold) == (target > 0.5f);
          // NaN is not equal to itself.
          return right & (x == x) & (target == target) ? 1.0f : 0.0f;
        },
        DivisorOf(spec.attributes));
  });
}

}  // namespace espalier
