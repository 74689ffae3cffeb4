#include "ops/cuda/label_rank.cuh"

namespace espalier {

void RegisterAccuracyCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add("accuracy", LabelLossFactory<AccuracyKernel>(contexts, "accuracy", /*top=*/false));
}

}  // namespace espalier
