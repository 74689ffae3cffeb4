// The rank of an element among a row's values, for accuracies.
#pragma once

#include <cstdint>

#include "ops/cpu/simd/vectorize.h"

namespace espalier {

// Returns the rank of element `index` in descending order, from 0; of equal values the first comes
// first. A NaN ranks last if it is the element, and before the element if it is another.
inline int64_t RankInRow(const float* row, int64_t n, int64_t index) {
  const int64_t after = Vectorize(
      [](const float* row, int64_t n, int64_t index) {
        const float score = row[index];
        int64_t after = 0;
#pragma omp simd reduction(+ : after)
        for (int64_t i = 0; i < index; ++i) after += row[i] < score;
#pragma omp simd reduction(+ : after)
        for (int64_t i = index; i < n; ++i) after += row[i] <= score;
        return after;
      },
      row, n, index);
  return n - after;
}

}  // namespace espalier
