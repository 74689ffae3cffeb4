#include "ops/cuda/convolution.h"

namespace espalier {

void RegisterConvTranspose2dCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  AddTransposedConvolution(registry, contexts, "conv_transpose2d");
}

}  // namespace espalier
