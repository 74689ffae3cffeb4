#include "ops/cpu/simd/activation.h"
#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterSiluCpu(KernelRegistry& registry) {
  AddUnary(registry, "silu", Silu(), SiluGradient());
}

}  // namespace espalier
