#include "ops/operators/convolution.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterConvTranspose2d(OpRegistry& registry) {
  registry.Add(MakeTransposedConvolution("conv_transpose2d", 2));
}

}  // namespace espalier
