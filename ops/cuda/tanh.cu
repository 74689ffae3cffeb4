#include "ops/cuda/math/activation.cuh"
#include "ops/cuda/elementwise.cuh"

namespace espalier {

void RegisterTanhCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "tanh", Tanh(), TanhGradient());
}

}  // namespace espalier
