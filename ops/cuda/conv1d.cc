#include "ops/cuda/convolution.h"

namespace espalier {

void RegisterConv1dCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  AddConvolution(registry, contexts, "conv1d");
}

}  // namespace espalier
