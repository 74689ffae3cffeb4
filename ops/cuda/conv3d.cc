#include "ops/cuda/convolution.h"

namespace espalier {

void RegisterConv3dCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  AddConvolution(registry, contexts, "conv3d");
}

}  // namespace espalier
