#include "ops/operators/convolution.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterConvTranspose3d(OpRegistry& registry) {
  registry.Add(MakeTransposedConvolution("conv_transpose3d", 3));
}

}  // namespace espalier
