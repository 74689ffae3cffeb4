#include "ops/cpu/elementwise.h"
#include "ops/cpu/vector_math.h"

namespace espalier {

void RegisterSiluCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "silu", [](float x) { return x * FastSigmoid(x); },
      [](float x, float dy) {
        const float s = FastSigmoid(x);
        return dy * s * (1.0f + x * (1.0f - s));
      });
}

}  // namespace espalier
