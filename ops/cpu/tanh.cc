#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/activation.h"

namespace espalier {

void RegisterTanhCpu(KernelRegistry& registry) {
  AddUnary(registry, "tanh", Tanh(), TanhGradient());
}

}  // namespace espalier
