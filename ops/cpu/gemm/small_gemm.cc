#include "ops/cpu/gemm/small_gemm.h"

#include "ops/cpu/simd/simd.h"

namespace espalier {
namespace {

using simd::Float;

// Computes R rows by P vectors of C in registers. Broadcasts elements of A, so A may have any
// strides.
template <int W, int R, int P>
ESPALIER_INLINE void Tile(const SmallGemmArgs& g, int64_t i, int64_t j) {
  Float<W> acc[R][P] = {};
  const float* a = g.a + i * g.a_row;
  const float* b = g.b + j;
  for (int64_t p = 0; p < g.k; ++p) {
    Float<W> right[P];
#pragma GCC unroll 4
    for (int v = 0; v < P; ++v) right[v] = simd::Load<W>(b + v * W);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const Float<W> left = simd::Splat<W>(a[r * g.a_row]);
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
      simd::Store<W>(c + v * W, g.accumulate ? simd::Load<W>(c + v * W) + acc[r][v] : acc[r][v]);
    }
  }
}

template <int W, int P>
ESPALIER_INLINE void Columns(const SmallGemmArgs& g, int64_t j) {
  int64_t i = 0;
  for (; i + 6 <= g.m; i += 6) Tile<W, 6, P>(g, i, j);
  for (; i + 2 <= g.m; i += 2) Tile<W, 2, P>(g, i, j);
  for (; i < g.m; ++i) Tile<W, 1, P>(g, i, j);
}

template <int W>
struct Body {
  static ESPALIER_INLINE void Run(const SmallGemmArgs* g) {
    // AVX-512: 24 accumulators, 4 vectors of B and a broadcast fit 32 registers. Else 12, 2 and 1
    // fit 16.
    constexpr int kVectors = W == 16 ? 4 : 2;
    int64_t j = 0;
    for (; j + kVectors * W <= g->n; j += kVectors * W) Columns<W, kVectors>(*g, j);
    if constexpr (kVectors > 2) {
      for (; j + 2 * W <= g->n; j += 2 * W) Columns<W, 2>(*g, j);
    }
    for (; j < g->n; j += W) Columns<W, 1>(*g, j);
  }
};

}  // namespace

void SmallGemm(const SmallGemmArgs& args) { simd::Dispatch<Body>(&args); }

}  // namespace espalier
