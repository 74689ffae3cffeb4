// y = x weight^T + bias for serving: every element of y comes out the same, bit for bit, whatever
// the number of rows, of threads and the row's place among them.
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
  DType weight_dtype = dtype;  // bf16 and f16 may stand beside f32
};

void BatchInvariantLinear(const BatchInvariantLinearArgs& args);

// Several with one x (and its rows and types).
void BatchInvariantLinear(std::span<const BatchInvariantLinearArgs> products);

}  // namespace espalier
