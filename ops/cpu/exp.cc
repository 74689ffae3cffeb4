#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/f32_math.h"

namespace espalier {

void RegisterExpCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "exp", [](float x) { return FastExp(x); },
      [](float y, float dy) { return dy * y; });
}

}  // namespace espalier
