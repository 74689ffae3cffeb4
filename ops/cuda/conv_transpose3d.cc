#include "ops/cuda/convolution.h"

namespace espalier {

void RegisterConvTranspose3dCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  AddTransposedConvolution(registry, contexts, "conv_transpose3d");
}

}  // namespace espalier
