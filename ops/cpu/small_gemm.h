// C = A B or C += A B for blocks that stay in cache (the pieces of attention). Registers hold a
// tile of R rows by P vectors of C; A's elements are broadcast, so A may have any strides.
#pragma once

#include "ops/cpu/simd.h"

namespace espalier::simd {

struct SmallGemmArgs {
  int64_t m, n, k;  // n is a multiple of 16
  const float* a;   // a[i * a_row + p * a_column]
  int64_t a_row, a_column;
  const float* b;  // b[p * b_row + j]
  int64_t b_row;
  float* c;  // c[i * c_row + j]
  int64_t c_row;
  bool accumulate;
};

template <int W, int R, int P>
ESPALIER_INLINE void SmallGemmTile(const SmallGemmArgs& g, int64_t i, int64_t j) {
  Float<W> acc[R][P] = {};
  const float* a = g.a + i * g.a_row;
  const float* b = g.b + j;
  for (int64_t p = 0; p < g.k; ++p) {
    Float<W> right[P];
#pragma GCC unroll 4
    for (int v = 0; v < P; ++v) right[v] = Load<W>(b + v * W);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const Float<W> left = Splat<W>(a[r * g.a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < P; ++v) acc[r][v] = left * right[v] + acc[r][v];
    }
    a += g.a_column;
    b += g.b_row;
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    float* c = g.c + (i + r) * g.c_row + j;
#pragma GCC unroll 4
    for (int v = 0; v < P; ++v) {
      Store<W>(c + v * W, g.accumulate ? Load<W>(c + v * W) + acc[r][v] : acc[r][v]);
    }
  }
}

template <int W, int P>
ESPALIER_INLINE void SmallGemmColumns(const SmallGemmArgs& g, int64_t j) {
  int64_t i = 0;
  for (; i + 6 <= g.m; i += 6) SmallGemmTile<W, 6, P>(g, i, j);
  for (; i + 2 <= g.m; i += 2) SmallGemmTile<W, 2, P>(g, i, j);
  for (; i < g.m; ++i) SmallGemmTile<W, 1, P>(g, i, j);
}

template <int W>
ESPALIER_INLINE void SmallGemm(const SmallGemmArgs& g) {
  // 24 accumulators, 4 of B and the broadcast fit 32 registers; 12, 2 and 1 fit 16.
  constexpr int kVectors = W == 16 ? 4 : 2;
  int64_t j = 0;
  for (; j + kVectors * W <= g.n; j += kVectors * W) SmallGemmColumns<W, kVectors>(g, j);
  for (; j < g.n; j += W) SmallGemmColumns<W, 1>(g, j);
}

}  // namespace espalier::simd
