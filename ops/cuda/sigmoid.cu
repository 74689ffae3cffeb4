#include "ops/cuda/math/activation.cuh"
#include "ops/cuda/elementwise.cuh"

namespace espalier {

void RegisterSigmoidCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "sigmoid", Sigmoid(), SigmoidGradient());
}

}  // namespace espalier
