#include <cmath>

#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterRoundingCpu(KernelRegistry& registry) {
  const auto zero = [](float) { return 0.0f; };
  AddUnary(
      registry, "floor", [](float x) { return std::floor(x); }, zero);
  AddUnary(
      registry, "ceil", [](float x) { return std::ceil(x); }, zero);
  AddUnary(
      registry, "round", [](float x) { return std::rint(x); }, zero);
}

}  // namespace espalier
