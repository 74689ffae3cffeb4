#include "ops/cpu/convolution.h"

namespace espalier {

void RegisterConv2dCpu(KernelRegistry& registry) { AddConvolution(registry, "conv2d"); }

}  // namespace espalier
