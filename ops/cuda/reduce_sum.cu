#include "ops/cuda/reduce_generic.cuh"

namespace espalier {

void RegisterReduceSumCuda(KernelRegistry& registry, DeviceContexts&) {
  AddReduction(registry, "reduce_sum", "reduce_sum_grad", [](const Attributes&) { return 1.0f; });
  // Integers, which the first kernel does not accept.
  AddFold</*integers=*/true>(registry, "reduce_sum", AsIs(), AsIs());
}

}  // namespace espalier
