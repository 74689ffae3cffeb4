#include "ops/cpu/binary.h"

namespace espalier {

void RegisterSubtractCpu(KernelRegistry& registry) {
  AddBinary<Takes::kNumbers>(registry, "subtract",
                             [](auto a, auto b) { return Wrapping(a) - Wrapping(b); });
  AddBinaryGradient</*saves_inputs=*/false>(
      registry, "subtract", [](float dy, float, float) { return dy; },
      [](float dy, float, float) { return -dy; });
}

}  // namespace espalier
