// Batch-invariant y = x weight^T + bias in bf16 or f16 (f32: mixed_input_gemm.h). Every element of
// y is summed in one order, whatever the number of rows, so a row's result does not depend on its
// batch. cuBLAS chooses its order by the shape.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/kernel/kernel.h"

namespace espalier {

struct BatchInvariantLinearProblem {
  DType dtype = DType::kBF16;  // or f16; of all operands
  int64_t rows = 0, in = 0, out = 0;
  const void* x = nullptr;       // [rows, in]
  const void* weight = nullptr;  // [out, in]
  const void* bias = nullptr;    // [out], or null
  void* y = nullptr;             // [rows, out]
};

KernelStatus BatchInvariantLinear(const BatchInvariantLinearProblem& problem, cudaStream_t stream);

}  // namespace espalier
