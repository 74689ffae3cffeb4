#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/activation.h"

namespace espalier {

void RegisterSiluCpu(KernelRegistry& registry) {
  AddUnary(registry, "silu", Silu(), SiluGradient());
}

}  // namespace espalier
