#include "ops/cuda/convolution.h"

namespace espalier {

void RegisterConv2dCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  AddConvolution(registry, contexts, "conv2d");
}

}  // namespace espalier
