// A tensor as a matrix: all dimensions but the last are flattened into rows.
#pragma once

#include <cstdint>

#include "ops/tensor/shape.h"

namespace espalier {

inline int64_t RowsOf(const Dims& dims) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < dims.size(); ++d) rows *= dims[d];
  return rows;
}

}  // namespace espalier
