#include <cmath>

#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterReciprocalCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "reciprocal", [](float x) { return 1.0f / x; },
      [](float y, float dy) { return -dy * y * y; });
  AddUnary(
      registry, "rsqrt", [](float x) { return 1.0f / std::sqrt(x); },
      [](float y, float dy) { return -0.5f * dy * y * y * y; });
}

}  // namespace espalier
