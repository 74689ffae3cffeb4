#include "ops/cpu/convolution.h"

namespace espalier {

void RegisterConvTranspose2dCpu(KernelRegistry& registry) {
  AddTransposedConvolution(registry, "conv_transpose2d");
}

}  // namespace espalier
