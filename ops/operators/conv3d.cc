#include "ops/operators/convolution.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterConv3d(OpRegistry& registry) { registry.Add(MakeConvolution("conv3d", 3)); }

}  // namespace espalier
