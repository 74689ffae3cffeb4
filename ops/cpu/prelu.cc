#include "ops/cpu/binary.h"

namespace espalier {

void RegisterPreluCpu(KernelRegistry& registry) {
  AddBinary(registry, "prelu", [](float x, float slope) {
    const float below = x * slope;
    return x > 0.0f ? x : below;
  });
  AddBinaryGradient</*saves_inputs=*/true>(
      registry, "prelu",
      [](float dy, float x, float slope) {
        const float below = dy * slope;
        return x > 0.0f ? dy : below;
      },
      [](float dy, float x, float) {
        const float below = dy * x;
        return x > 0.0f ? 0.0f : below;
      });
}

}  // namespace espalier
