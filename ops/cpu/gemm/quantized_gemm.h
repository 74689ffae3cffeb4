// Batch-invariant products of rows in int8 with packed weights (ops/kernel/packed_weights.h). Sums
// within a group of 32 inputs are integers, hence exact; groups are added in f32 from first to
// last. So every element has the same bits, whatever the number of rows, of threads and the row's
// position.
#pragma once

#include <cstdint>

#include "ops/kernel/packed_weights.h"

namespace espalier {

// Rows of x quantized to int8 with one scale per group: x = q * scale. Padded with zeros to whole
// groups.
struct QuantizedRows {
  int64_t rows = 0, groups = 0;
  int8_t* q = nullptr;          // [rows, groups * 32], -127..127
  float* scale = nullptr;       // [rows, groups]; NaN if the group holds an infinity or a NaN
  int32_t* sum = nullptr;       // [rows, groups], of q
  float* scaled_sum = nullptr;  // [rows, groups], scale times sum

  // Bytes of memory needed, and a view of it. REQUIRES: aligned to four bytes.
  static constexpr int64_t Bytes(int64_t rows, int64_t groups) {
    return rows * groups * (kPackGroup + 12);
  }
  static QuantizedRows At(void* memory, int64_t rows, int64_t groups);

  // Returns rows [begin, end).
  QuantizedRows Part(int64_t begin, int64_t end) const;
};

// Instruction sets of QuantizedGemm, from the slowest to the fastest.
enum class QuantizedIsa { kPortable, kAvx2, kAvx512Vnni, kAmx };
QuantizedIsa BestQuantizedIsa();

// Quantizes x, f32[rows, in]: rounds to nearest; the largest magnitude of a group becomes 127.
void QuantizeRows(QuantizedIsa isa, const float* x, int64_t in, const QuantizedRows& to);

// Computes y[r, o] = x[r] . weight[o], f32[rows, out], for the outputs of blocks [begin, end).
void QuantizedGemm(QuantizedIsa isa, const PackedWeights& shape, const uint8_t* weights,
                   const QuantizedRows& x, int64_t begin, int64_t end, float* y);

}  // namespace espalier
