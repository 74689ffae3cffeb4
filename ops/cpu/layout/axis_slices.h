// Copies of consecutive slices along one axis: for concat, split and their gradients.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/cpu/layout/strided.h"
#include "ops/kernel/kernel.h"

namespace espalier {

inline size_t AxisOf(const Attributes& attributes, size_t rank) {
  const int64_t axis = attributes.Int("axis");
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

// Copies the part of `whole` that begins at index `start` of `axis` and has the shape of `piece` to
// `piece`.
inline void CopyFromWhole(const TensorView& whole, size_t axis, int64_t start,
                          const TensorView& piece) {
  const Dims strides = DenseStrides(whole.dims());
  const size_t size = SizeOf(whole.dtype());
  CopyStrided(piece.dims(), size,
              At(whole.data, start * strides[axis] * static_cast<int64_t>(size)), strides,
              piece.data, DenseStrides(piece.dims()));
}

// Copies `piece` to the part of `whole` that begins at index `start` of `axis`.
inline void CopyIntoWhole(const TensorView& piece, const TensorView& whole, size_t axis,
                          int64_t start) {
  const Dims strides = DenseStrides(whole.dims());
  const size_t size = SizeOf(whole.dtype());
  CopyStrided(piece.dims(), size, piece.data, DenseStrides(piece.dims()),
              At(whole.data, start * strides[axis] * static_cast<int64_t>(size)), strides);
}

}  // namespace espalier
