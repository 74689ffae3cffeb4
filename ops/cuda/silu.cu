#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/math/activation.cuh"

namespace espalier {

void RegisterSiluCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "silu", Silu(), SiluGradient());
}

}  // namespace espalier
