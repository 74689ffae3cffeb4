// Copies between strided views of device memory, which implement all shape operators and box
// copies.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/runtime/plugin.h"
#include "ops/kernel/kernel.h"
#include "ops/tensor/shape.h"

namespace espalier {

// Returns the strides in elements of dense row-major dimensions.
Dims DenseStrides(const Dims& dims);

// A block of `size` elements per dimension (at most 8), read and written at strides in elements.
struct StridedBlock {
  DType dtype = DType::kInvalid;
  const void* source = nullptr;
  void* destination = nullptr;
  Dims size;
  Dims source_strides;
  Dims destination_strides;
};

// Enqueues the copy on `stream`. Errors name `op`.
KernelStatus CopyStrided(const StridedBlock& block, cudaStream_t stream, const char* op);
// Enqueues destination += source, for numeric types; f16 and bf16 add in f32.
KernelStatus AddStrided(const StridedBlock& block, cudaStream_t stream, const char* op);

KernelStatus CopyBoxOnStream(const BoxCopy& copy, cudaStream_t stream);

// Enqueues setting `count` elements to `value`: rounded to nearest even, truncated for integers.
KernelStatus FillOnStream(void* destination, DType dtype, int64_t count, double value,
                          cudaStream_t stream);

}  // namespace espalier
