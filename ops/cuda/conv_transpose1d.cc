#include "ops/cuda/convolution.h"

namespace espalier {

void RegisterConvTranspose1dCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  AddTransposedConvolution(registry, contexts, "conv_transpose1d");
}

}  // namespace espalier
