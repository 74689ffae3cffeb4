#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/math/activation.cuh"

namespace espalier {

void RegisterReluCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "relu", Relu(), ReluGradient());
}

}  // namespace espalier
