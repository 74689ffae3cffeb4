#include "ops/cpu/simd/activation.h"
#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterTanhCpu(KernelRegistry& registry) {
  AddUnary(registry, "tanh", Tanh(), TanhGradient());
}

}  // namespace espalier
