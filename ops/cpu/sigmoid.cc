#include "ops/cpu/elementwise.h"
#include "ops/cpu/vector_math.h"

namespace espalier {

void RegisterSigmoidCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "sigmoid", [](float x) { return FastSigmoid(x); },
      [](float y, float dy) { return dy * (1.0f - y) * y; });
}

}  // namespace espalier
