#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterLeakyReluCpu(KernelRegistry& registry) {
  AddUnaryWith(
      registry, "leaky_relu",
      [](const Attributes& attributes) {
        return [alpha = static_cast<float>(attributes.Float("alpha"))](float x) {
          const float below = alpha * x;
          return x > 0.0f ? x : below;
        };
      },
      [](const Attributes& attributes) {
        return [alpha = static_cast<float>(attributes.Float("alpha"))](float x, float dy) {
          const float below = alpha * dy;
          return x > 0.0f ? dy : below;
        };
      });
  AddUnaryWith(
      registry, "thresholded_relu",
      [](const Attributes& attributes) {
        return [alpha = static_cast<float>(attributes.Float("alpha"))](float x) {
          return x <= alpha ? 0.0f : x;
        };
      },
      [](const Attributes& attributes) {
        return [alpha = static_cast<float>(attributes.Float("alpha"))](float x, float dy) {
          return x > alpha ? dy : 0.0f;
        };
      });
  AddUnaryWith(
      registry, "shrink",
      [](const Attributes& attributes) {
        return [bias = static_cast<float>(attributes.Float("bias")),
                lambd = static_cast<float>(attributes.Float("lambd"))](float x) {
          const float below = x + bias, above = x - bias;
          const float right = x > lambd ? above : 0.0f;
          const float y = x < -lambd ? below : right;
          return x == x ? y : x;
        };
      },
      [](const Attributes& attributes) {
        return [lambd = static_cast<float>(attributes.Float("lambd"))](float x, float dy) {
          return (x < -lambd) | (x > lambd) ? dy : 0.0f;
        };
      });
}

}  // namespace espalier
