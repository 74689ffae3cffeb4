// Log-softmax statistics of rows of logits, and loops over a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/simd/f32_math.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier {

constexpr int64_t kRowWork = 8;  // units of ParallelFor per logit

// Returns how many rows of `classes` logits a thread takes at once.
inline int64_t RowBlock(int64_t classes) {
  return std::max<int64_t>(1, kParallelGrain / (kRowWork * classes));
}

inline float RowMax(const float* x, int64_t n) {
  return Vectorize(
      [](const float* x, int64_t n) {
        float most = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < n; ++i) most = x[i] > most ? x[i] : most;
        return most;
      },
      x, n);
}

// Returns the sum of exp(x - shift); stores the terms in `out` unless it is null.
inline double RowExp(const float* x, float shift, float* out, int64_t n) {
  double sum = 0;
  float buffer[kSumBlock];
  for (int64_t i = 0; i < n; i += kSumBlock) {
    const int64_t count = std::min(kSumBlock, n - i);
    float* to = out != nullptr ? out + i : buffer;
    sum += Vectorize(
        [](const float* x, float shift, float* out, int64_t n) {
          float sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t j = 0; j < n; ++j) {
            const float e = FastExp(x[j] - shift);
            out[j] = e;
            sum += e;
          }
          return sum;
        },
        x + i, shift, to, count);
  }
  return sum;
}

// Returns the sum of f(a[i], b[i]); f is a function object on scalars.
template <typename F>
double RowSum(F f, const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kSumBlock) {
    sum += Vectorize(
        [](F f, const float* a, const float* b, int64_t n) {
          float sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t j = 0; j < n; ++j) sum += f(a[j], b[j]);
          return sum;
        },
        f, a + i, b + i, std::min(kSumBlock, n - i));
  }
  return sum;
}

// out[i] = f(a[i], b[i]) in the calling thread; out may alias an input.
template <typename F>
void RowMap(F f, const float* a, const float* b, float* out, int64_t n) {
  Vectorize(
      [](F f, const float* a, const float* b, float* out, int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
      },
      f, a, b, out, n);
}

}  // namespace espalier
