#include "ops/cpu/elementwise.h"
#include "ops/cpu/vector_math.h"

namespace espalier {

void RegisterTanhCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "tanh", [](float x) { return FastTanh(x); },
      [](float y, float dy) { return dy * (1.0f - y * y); });
}

}  // namespace espalier
