// A tensor as lines along one axis: [outer, length, inner]. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/tensor/shape.h"

namespace espalier {

struct AxisLines {
  int64_t outer = 1, length = 1, inner = 1;

  // `axis` counts from the end if negative.
  AxisLines(const Dims& dims, int64_t axis) {
    if (axis < 0) axis += static_cast<int64_t>(dims.size());
    length = dims[axis];
    for (int64_t d = 0; d < axis; ++d) outer *= dims[d];
    for (size_t d = axis + 1; d < dims.size(); ++d) inner *= dims[d];
  }
  // The number of lines, and the index of the first element of line number `line`; its elements are
  // `inner` apart.
  int64_t count() const { return outer * inner; }
  int64_t Start(int64_t line) const { return line / inner * length * inner + line % inner; }
};

}  // namespace espalier
