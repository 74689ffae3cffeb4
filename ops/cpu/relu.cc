#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/activation.h"

namespace espalier {

void RegisterReluCpu(KernelRegistry& registry) {
  AddUnary(registry, "relu", Relu(), ReluGradient());
}

}  // namespace espalier
