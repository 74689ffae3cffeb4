// C = A B or C += A B for blocks that stay in cache (blocks of attention), on the calling thread.
// Element (i, j) adds its products for p = 0, 1, ... in order, whatever the block.
#pragma once

#include <cstdint>

namespace espalier {

struct SmallGemmArgs {
  int64_t m, n, k;  // n must be a multiple of 16
  const float* a;   // a[i * a_row + p * a_column]
  int64_t a_row, a_column;
  const float* b;  // b[p * b_row + j]
  int64_t b_row;
  float* c;  // c[i * c_row + j]
  int64_t c_row;
  bool accumulate;
};

void SmallGemm(const SmallGemmArgs& args);

}  // namespace espalier
