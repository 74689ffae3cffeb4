// Batched row-major matrix products by cuBLAS.
#pragma once

#include <cstdint>

#include "ops/cuda/runtime/device_context.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// One operand of a batch of products. Untransposed, A is [m, k] and B is [k, n] in memory; `ld` is
// the number of elements from one row in memory to the next.
struct GemmOperand {
  const void* data = nullptr;
  bool transposed = false;
  int64_t ld = 0;
  int64_t batch_stride = 0;  // 0: the same for all
};

// C[m, n] = alpha * A B + beta * C, `batch` times. Sums are taken in f32.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  GemmOperand a, b;
  void* c = nullptr;
  int64_t ldc = 0;
  int64_t c_stride = 0;
  DType input = DType::kF32;   // f32, bf16, f16
  DType output = DType::kF32;  // like input, or f32
  float alpha = 1, beta = 0;
};

KernelStatus RunGemm(DeviceContexts& contexts, const Gemm& gemm, void* stream, const char* op);

}  // namespace espalier
