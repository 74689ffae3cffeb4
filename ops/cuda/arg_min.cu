#include "ops/cuda/arg_min_max.cuh"

namespace espalier {

void RegisterArgMinCuda(KernelRegistry& registry, DeviceContexts&) {
  AddArgExtreme</*largest=*/false>(registry, "arg_min");
}

}  // namespace espalier
