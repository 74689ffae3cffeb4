#include "ops/operators/convolution.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterConv1d(OpRegistry& registry) { registry.Add(MakeConvolution("conv1d", 1)); }

}  // namespace espalier
