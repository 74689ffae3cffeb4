#include "ops/cuda/reduce_op.cuh"

namespace espalier {

void RegisterReduceSumCuda(KernelRegistry& registry, DeviceContexts&) {
  AddReduction(registry, "reduce_sum", "reduce_sum_grad", [](const Attributes&) { return 1.0f; });
}

}  // namespace espalier
