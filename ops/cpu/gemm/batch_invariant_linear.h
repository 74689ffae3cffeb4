// Batch-invariant y = x weight^T + bias for serving: every element of y has the same bits, whatever
// the number of rows, the number of threads and the row's position in the batch.
#pragma once

#include <cstdint>
#include <span>

#include "ops/tensor/dtype.h"

namespace espalier {

struct BatchInvariantLinearArgs {
  DType dtype;  // of x, bias and y: f32 or bf16; sums are f32
  int64_t rows, in, out;
  const void* x;               // [rows, in]
  const void* weight;          // [out, in]
  const void* bias;            // [out] or null
  void* y;                     // [rows, out]
  DType weight_dtype = dtype;  // bf16 and f16 weights may be used with f32 x
};

void BatchInvariantLinear(const BatchInvariantLinearArgs& args);

// Computes several products that share x, rows and types. REQUIRES: products is not empty.
void BatchInvariantLinear(std::span<const BatchInvariantLinearArgs> products);

}  // namespace espalier
