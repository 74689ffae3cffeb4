#include "ops/cpu/binary.h"

namespace espalier {

void RegisterMultiplyCpu(KernelRegistry& registry) {
  AddBinary</*integers=*/true>(registry, "multiply", [](auto a, auto b) { return a * b; });
  AddBinaryGradient</*saves_inputs=*/true>(
      registry, "multiply", [](float dy, float, float b) { return dy * b; },
      [](float dy, float a, float) { return dy * a; });
}

}  // namespace espalier
