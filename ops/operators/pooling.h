// Pooling windows over the last two dimensions of x[N, C, H, W].
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/schema/op_def.h"

namespace espalier {

// kernel, strides, pads, dilations, ceil_mode.
std::vector<AttributeSpec> WindowAttributes();

// Returns the height and width of the result, or an error that names what does not fit.
absl::StatusOr<Dims> WindowedSize(const std::string& op, const NodeTypes& types);

// Splits along samples and channels, all operands alike.
SplitRule SplitPlanes(const NodeTypes& types);

// "height" for dimension 0 of 2 spatial ones, and so on.
const char* SpatialName(int spatial, int dim);

// Adds the axis `name`, along which output 0 and, with a halo, `halo.input` are split. Adds none if
// a shard could read padding alone. `after`: the padding behind the dimension.
void SplitWindows(const Halo& halo, int64_t after, const char* name, const NodeTypes& types,
                  SplitRule* rule);

// One operation per element of every window.
Cost WindowCost(const NodeTypes& types);

}  // namespace espalier
