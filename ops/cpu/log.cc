#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/f64_math.h"

namespace espalier {

void RegisterLogCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "log", [](float x) { return static_cast<float>(LogF64(x)); },
      [](float x, float dy) { return dy / x; });
}

}  // namespace espalier
