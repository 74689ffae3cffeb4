#include "ops/operators/convolution.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterConv2d(OpRegistry& registry) { registry.Add(MakeConvolution("conv2d", 2)); }

}  // namespace espalier
