#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/activation.h"

namespace espalier {

void RegisterSigmoidCpu(KernelRegistry& registry) {
  AddUnary(registry, "sigmoid", Sigmoid(), SigmoidGradient());
}

}  // namespace espalier
