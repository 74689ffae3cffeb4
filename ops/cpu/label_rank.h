// Places in the order of a row's values.
#pragma once

#include <cstdint>

#include "ops/cpu/simd/vectorize.h"

namespace espalier {

// How many of the other elements of the row do not come after element `index`, which is the rank of
// the element where larger values come first and, of equal ones, the first. Comparisons with NaN
// are false: a NaN comes last if it is the element, and before it if it is another.
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
