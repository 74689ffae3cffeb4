// Convolutions and transposed convolutions over any number of spatial dimensions.
#pragma once

#include <string>

#include "ops/schema/op_def.h"

namespace espalier {

// x[N, C, spatial...], weight[O, C/groups, kernel...], bias[O]? -> [N, O, spatial'...]
OpDef MakeConvolution(const std::string& name, int spatial);

// x[N, C, spatial...], weight[C, O/groups, kernel...], bias[O]? -> [N, O, spatial'...]: the
// gradient of a convolution by its x, as a forward operator.
OpDef MakeTransposedConvolution(const std::string& name, int spatial);

}  // namespace espalier
