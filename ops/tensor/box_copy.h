// A copy of a box between two tensors, as devices carry it out.
#pragma once

#include "ops/tensor/dtype.h"
#include "ops/tensor/shape.h"

namespace espalier {

// Copies the box [source_start, source_start + size) of one dense row-major tensor to
// destination_start of another of the same dtype and rank (0 to 8), adding to what is there if
// `accumulate` (floating-point and integer types; f16 and bf16 add in f32 and round to nearest
// even). Source and destination do not overlap.
struct BoxCopy {
  const void* source = nullptr;
  void* destination = nullptr;
  DType dtype = DType::kInvalid;
  Dims source_dims;
  Dims destination_dims;
  Dims source_start;
  Dims destination_start;
  Dims size;
  bool accumulate = false;
};

}  // namespace espalier
