#include "ops/cuda/reduce_sum_mean.cuh"

namespace espalier {

void RegisterReduceMeanCuda(KernelRegistry& registry, DeviceContexts&) {
  AddReduction(registry, "reduce_mean", "reduce_mean_grad", [](const Attributes& attributes) {
    return static_cast<float>(1.0 / static_cast<double>(attributes.Int("count", 1)));
  });
}

}  // namespace espalier
