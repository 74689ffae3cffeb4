#include "ops/cpu/convolution.h"

namespace espalier {

void RegisterConvTranspose3dCpu(KernelRegistry& registry) {
  AddTransposedConvolution(registry, "conv_transpose3d");
}

}  // namespace espalier
