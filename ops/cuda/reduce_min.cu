#include "ops/cuda/reduce_min_max.cuh"

namespace espalier {

void RegisterReduceMinCuda(KernelRegistry& registry, DeviceContexts&) {
  AddExtreme</*largest=*/false>(registry, "reduce_min", "reduce_min_grad");
}

}  // namespace espalier
