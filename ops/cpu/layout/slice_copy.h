// Copies from and to a strided slice of a tensor (ops/kernel/slice.h).
#pragma once

#include "ops/cpu/layout/strided.h"
#include "ops/kernel/kernel.h"
#include "ops/kernel/slice.h"

namespace espalier {

inline void CopyFromWindow(const Window& window, const TensorView& whole, const TensorView& part) {
  const int64_t size = static_cast<int64_t>(SizeOf(whole.dtype()));
  CopyStrided(part.dims(), size, At(whole.data, window.start * size), window.strides, part.data,
              DenseStrides(part.dims()));
}

inline void CopyIntoWindow(const Window& window, const TensorView& part, const TensorView& whole) {
  const int64_t size = static_cast<int64_t>(SizeOf(whole.dtype()));
  CopyStrided(part.dims(), size, part.data, DenseStrides(part.dims()),
              At(whole.data, window.start * size), window.strides);
}

}  // namespace espalier
