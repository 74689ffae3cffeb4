#include "ops/cpu/binary.h"

namespace espalier {

void RegisterDivideCpu(KernelRegistry& registry) {
  AddBinary</*integers=*/false>(registry, "divide", [](auto a, auto b) { return a / b; });
  AddBinaryGradient</*saves_inputs=*/true>(
      registry, "divide", [](float dy, float, float b) { return dy / b; },
      [](float dy, float a, float b) { return -dy * (a / b) / b; });
}

}  // namespace espalier
