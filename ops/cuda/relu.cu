#include "ops/cuda/math/activation.cuh"
#include "ops/cuda/elementwise.cuh"

namespace espalier {

void RegisterReluCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "relu", Relu(), ReluGradient());
}

}  // namespace espalier
