#include "ops/cuda/math/activation.cuh"
#include "ops/cuda/elementwise.cuh"

namespace espalier {

void RegisterSiluCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "silu", Silu(), SiluGradient());
}

}  // namespace espalier
