#include "ops/operators/convolution.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterConvTranspose1d(OpRegistry& registry) {
  registry.Add(MakeTransposedConvolution("conv_transpose1d", 1));
}

}  // namespace espalier
