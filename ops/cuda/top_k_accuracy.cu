#include "ops/cuda/label_rank.cuh"

namespace espalier {

void RegisterTopKAccuracyCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  registry.Add("top_k_accuracy",
               LabelLossFactory<AccuracyKernel>(contexts, "top_k_accuracy", /*top=*/true));
}

}  // namespace espalier
