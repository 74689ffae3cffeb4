#include <cmath>

#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterSqrtCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "sqrt", [](float x) { return std::sqrt(x); },
      [](float y, float dy) { return dy * 0.5f / y; });
}

}  // namespace espalier
