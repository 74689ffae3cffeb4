#include "ops/cpu/binary.h"

namespace espalier {

void RegisterMultiplyCpu(KernelRegistry& registry) {
  AddBinary<Takes::kNumbers>(registry, "multiply",
                             [](auto a, auto b) { return Wrapping(a) * Wrapping(b); });
  AddBinaryGradient</*saves_inputs=*/true>(
      registry, "multiply", [](float dy, float, float b) { return dy * b; },
      [](float dy, float a, float) { return dy * a; });
}

}  // namespace espalier
