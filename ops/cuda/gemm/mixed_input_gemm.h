// Mixed-input GEMM on tensor cores: y = activation(x weight^T + bias), where x is f32 and the
// weights are f32, bf16, f16, or packed in 8 or 4 bits. Batch-invariant: every element of y is
// summed in one order, whatever the number of rows, so a row's result does not depend on its batch.
//
// f32 and f16 operands are split exactly into three and two bf16 numbers (bf16x3_split.cuh).
// Products of two terms that are below 2^-24 of the largest are left out.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/kernel/activation.h"
#include "ops/kernel/kernel.h"

namespace espalier {

enum class GemmWeightFormat { kF32, kBF16, kF16, kPacked8, kPacked4 };

// One weight matrix and its output. REQUIRES: no kernel of the same step writes the weights.
// Kernels read them before WaitOnDependentGrids (ptx.cuh), while the previous kernel may still run.
// A kernel cannot check who wrote its operands; only serving programs use this GEMM, and their
// weights are parameters (ServingBuilder::Linear).
struct MixedInputGemmWeight {
  const void* weights = nullptr;  // [out, in], or packed (ops/kernel/packed_weights.h)
  const float* bias = nullptr;    // [out], or null
  float* y = nullptr;             // [rows, out]
  int64_t out = 0;
};

// Up to kMaxProducts weight matrices that share x (for example q, k and v).
struct MixedInputGemm {
  static constexpr int kMaxProducts = 8;

  const char* op = "linear";  // for errors
  GemmWeightFormat kind = GemmWeightFormat::kF32;
  Activation activation = Activation::kNone;
  int64_t rows = 0, in = 0;
  const float* x = nullptr;  // [rows, in]
  int count = 0;
  MixedInputGemmWeight products[kMaxProducts];
};

// Workspace in bytes for up to `rows` rows.
size_t MixedInputGemmWorkspace(GemmWeightFormat kind, int64_t rows, int64_t in);

KernelStatus RunMixedInputGemm(const MixedInputGemm& problem, void* workspace, cudaStream_t stream);

// Takes the operands of a kernel: inputs x, weight, bias (may be absent), repeated for each of the
// outputs.
KernelStatus RunMixedInputGemm(const char* op, GemmWeightFormat kind, Activation activation,
                               const KernelArgs& args);

}  // namespace espalier
