#include "ops/cpu/simd/activation.h"
#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterReluCpu(KernelRegistry& registry) {
  AddUnary(registry, "relu", Relu(), ReluGradient());
}

}  // namespace espalier
