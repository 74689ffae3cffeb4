#include "ops/cpu/simd/activation.h"
#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterSigmoidCpu(KernelRegistry& registry) {
  AddUnary(registry, "sigmoid", Sigmoid(), SigmoidGradient());
}

}  // namespace espalier
