// y = activation(x weight^T + bias) for rows of f32 and matrices in f32, bf16, f16, or packed in 8
// or 4 bits, by the tensor cores, with one order of summation for every element of y, whatever the
// number of rows: serving needs a row's bits not to depend on the batch it rides in.
//
// f32 operands are sums of three bf16 numbers, f16 ones of two, exactly; of the products of such
// sums, those that are less than 2^-24 of the largest are left out (as in "bf16x6": Henry, Tang,
// Heinecke 2019).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/kernel/activation.h"
#include "ops/kernel/kernel.h"

namespace espalier {

enum class GemmWeightFormat { kF32, kBF16, kF16, kPacked8, kPacked4 };

// One matrix and where its products go. REQUIRES: no kernel of the same step writes the weights.
// Kernels read them ahead of WaitOnDependentGrids (launch.cuh), while the kernel before may still be
// running. Nothing tells a kernel who wrote its operands; in serving programs, the only ones that
// come here, matrices are parameters (ServingBuilder::Linear).
struct MixedInputGemmWeight {
  const void* weights = nullptr;  // [out, in], or packed (ops/kernel/packed_weights.h)
  const float* bias = nullptr;    // [out], or null
  float* y = nullptr;             // [rows, out]
  int64_t out = 0;
};

// Several matrices of the same rows.
struct MixedInputGemm {
  static constexpr int kMost = 8;

  const char* op = "linear";  // for errors
  GemmWeightFormat kind = GemmWeightFormat::kF32;
  Activation activation = Activation::kNone;
  int64_t rows = 0, in = 0;
  const float* x = nullptr;  // [rows, in]
  int count = 0;
  MixedInputGemmWeight products[kMost];
};

// Bytes for up to `rows` rows.
size_t MixedInputGemmWorkspace(GemmWeightFormat kind, int64_t rows, int64_t in);

KernelStatus RunMixedInputGemm(const MixedInputGemm& problem, void* workspace, cudaStream_t stream);

// The same for a kernel's operands: x, weight, bias (which may be absent), again and again, and an
// output for each.
KernelStatus RunMixedInputGemm(const char* op, GemmWeightFormat kind, Activation activation,
                            const KernelArgs& args);

}  // namespace espalier
