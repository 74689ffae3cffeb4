#include "ops/cpu/convolution.h"

namespace espalier {

void RegisterConv1dCpu(KernelRegistry& registry) { AddConvolution(registry, "conv1d"); }

}  // namespace espalier
