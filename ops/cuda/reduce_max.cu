#include "ops/cuda/reduce_min_max.cuh"

namespace espalier {

void RegisterReduceMaxCuda(KernelRegistry& registry, DeviceContexts&) {
  AddExtreme</*largest=*/true>(registry, "reduce_max", "reduce_max_grad");
}

}  // namespace espalier
