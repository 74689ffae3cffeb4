#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/math/activation.cuh"

namespace espalier {

void RegisterTanhCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "tanh", Tanh(), TanhGradient());
}

}  // namespace espalier
