#include "ops/cuda/arg_min_max.cuh"

namespace espalier {

void RegisterArgMaxCuda(KernelRegistry& registry, DeviceContexts&) {
  AddArgExtreme</*largest=*/true>(registry, "arg_max");
}

}  // namespace espalier
