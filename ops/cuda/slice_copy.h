// Copies from and to a strided slice of a tensor (ops/kernel/slice.h).
#pragma once

#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"
#include "ops/kernel/slice.h"

namespace espalier {

inline void* WindowStart(const Window& window, const TensorView& whole) {
  return static_cast<char*>(whole.data) +
         window.start * static_cast<int64_t>(SizeOf(whole.dtype()));
}

inline KernelStatus CopyFromWindow(const Window& window, const TensorView& whole,
                                   const TensorView& part, void* stream, const char* op) {
  return CopyStrided({whole.dtype(), WindowStart(window, whole), part.data, part.dims(),
                      window.strides, DenseStrides(part.dims())},
                     static_cast<cudaStream_t>(stream), op);
}

inline KernelStatus CopyIntoWindow(const Window& window, const TensorView& part,
                                   const TensorView& whole, void* stream, const char* op) {
  return CopyStrided({whole.dtype(), part.data, WindowStart(window, whole), part.dims(),
                      DenseStrides(part.dims()), window.strides},
                     static_cast<cudaStream_t>(stream), op);
}

}  // namespace espalier
