#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/math/activation.cuh"

namespace espalier {

void RegisterSigmoidCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "sigmoid", Sigmoid(), SigmoidGradient());
}

}  // namespace espalier
