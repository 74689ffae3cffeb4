#include "ops/cpu/elementwise.h"
#include "ops/cpu/wide_math.h"

namespace espalier {

void RegisterLogCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "log", [](float x) { return static_cast<float>(WideLog(x)); },
      [](float x, float dy) { return dy / x; });
}

}  // namespace espalier
