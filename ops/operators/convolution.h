// Convolutions over any number of spatial dimensions, and their transposes: one definition each.
#pragma once

#include <string>

#include "ops/schema/op_def.h"

namespace espalier {

// x[N, C, spatial...], weight[O, C/groups, kernel...], bias[O]? -> [N, O, spatial'...]
OpDef MakeConvolution(const std::string& name, int spatial);

// x[N, C, spatial...], weight[C, O/groups, kernel...], bias[O]? -> [N, O, spatial'...]: the
// gradient of a convolution with regard to its x, as a map of its own.
OpDef MakeTransposedConvolution(const std::string& name, int spatial);

}  // namespace espalier
