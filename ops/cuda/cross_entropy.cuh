// Log-softmax statistics of rows of logits, one block per row.
#pragma once

#include "ops/cuda/math/reduce.cuh"

namespace espalier {

struct LogitStats {
  float most, sum;
};

// Returns the row's maximum and the sum of exp(x - maximum).
__device__ inline LogitStats ComputeLogitStats(const float* row, int64_t classes) {
  float most = -INFINITY;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) most = fmaxf(most, row[i]);
  most = BlockMax(most);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) sum += expf(row[i] - most);
  return {most, BlockSum(sum)};
}

}  // namespace espalier
