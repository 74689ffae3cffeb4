// Copies of consecutive slices along one axis: for concat and split.
#pragma once

#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"

namespace espalier {

inline size_t AxisOf(const Attributes& attributes, size_t rank) {
  const int64_t axis = attributes.Int("axis");
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

// Returns the copy between `piece` and the region of `whole` that begins at `start` along `axis`.
inline BoxCopy AxisSliceBox(const TensorView& piece, const TensorView& whole, size_t axis,
                            int64_t start, bool into_whole) {
  BoxCopy box;
  box.dtype = piece.dtype();
  box.size = piece.dims();
  box.source_start = box.destination_start = Dims(piece.dims().size(), 0);
  if (into_whole) {
    box.source = piece.data;
    box.destination = whole.data;
    box.source_dims = piece.dims();
    box.destination_dims = whole.dims();
    box.destination_start[axis] = start;
  } else {
    box.source = whole.data;
    box.destination = piece.data;
    box.source_dims = whole.dims();
    box.destination_dims = piece.dims();
    box.source_start[axis] = start;
  }
  return box;
}

inline KernelStatus CopyIntoWhole(const TensorView& piece, const TensorView& whole, size_t axis,
                                  int64_t start, void* stream) {
  return CopyBoxOnStream(AxisSliceBox(piece, whole, axis, start, true),
                         static_cast<cudaStream_t>(stream));
}

inline KernelStatus CopyFromWhole(const TensorView& whole, size_t axis, int64_t start,
                                  const TensorView& piece, void* stream) {
  return CopyBoxOnStream(AxisSliceBox(piece, whole, axis, start, false),
                         static_cast<cudaStream_t>(stream));
}

}  // namespace espalier
