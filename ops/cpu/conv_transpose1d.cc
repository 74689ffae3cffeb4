#include "ops/cpu/convolution.h"

namespace espalier {

void RegisterConvTranspose1dCpu(KernelRegistry& registry) {
  AddTransposedConvolution(registry, "conv_transpose1d");
}

}  // namespace espalier
