#include "ops/cpu/elementwise.h"

namespace espalier {
namespace {

// min(max(x, 0), 1), NaN for NaN.
float Unit(float x) {
  const float positive = x < 0.0f ? 0.0f : x;
  return positive > 1.0f ? 1.0f : positive;
}

}  // namespace

void RegisterHardSwishCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "hard_swish", [](float x) { return x * Unit((x + 3.0f) * (1.0f / 6.0f)); },
      [](float x, float dy) {
        const float inside = dy * (x * (1.0f / 3.0f) + 0.5f);
        const float above = x >= 3.0f ? dy : inside;
        return x <= -3.0f ? 0.0f : above;
      });
  AddUnaryWith(
      registry, "hard_sigmoid",
      [](const Attributes& attributes) {
        return [alpha = static_cast<float>(attributes.Float("alpha")),
                beta = static_cast<float>(attributes.Float("beta"))](float x) {
          return Unit(alpha * x + beta);
        };
      },
      [](const Attributes& attributes) {
        return [alpha = static_cast<float>(attributes.Float("alpha"))](float y, float dy) {
          const float inside = alpha * dy;
          return (y > 0.0f) & (y < 1.0f) ? inside : 0.0f;
        };
      });
}

}  // namespace espalier
