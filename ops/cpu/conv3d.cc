#include "ops/cpu/convolution.h"

namespace espalier {

void RegisterConv3dCpu(KernelRegistry& registry) { AddConvolution(registry, "conv3d"); }

}  // namespace espalier
