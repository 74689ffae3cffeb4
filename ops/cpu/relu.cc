#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterReluCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "relu", [](float x) { return x < 0.0f ? 0.0f : x; },
      [](float y, float dy) { return y <= 0.0f ? 0.0f : dy; });
}

}  // namespace espalier
