// Dot products of rows with rows, each computed in one fixed order: lane j of a vector of W partial
// sums takes elements j, j + W, j + 2W, ... by fused multiply-add (where the CPU has it), and the
// lanes are added by the tree of simd::SumEach. A product's bits depend on its two rows alone, not
// on how many are computed together.
#pragma once

#include <algorithm>

#include "ops/cpu/simd.h"

namespace espalier::simd {

// Elements ahead of which a row is asked from memory.
constexpr int64_t kDotAhead = 1024;
// Rows that are read side by side, at most: of sixteen memory delivers a third less.
constexpr int kDotStreams = 8;

// W elements from p as f32; uint16_t is bf16.
template <int W>
ESPALIER_INLINE Float<W> LoadWide(const float* p) {
  return Load<W>(p);
}

template <int W>
ESPALIER_INLINE Float<W> LoadWide(const uint16_t* p) {
  typename Types<W>::Short v;
  std::memcpy(&v, p, sizeof(v));
  return (Float<W>)(__builtin_convertvector(v, typename Types<W>::Word) << 16);
}

template <int W, typename T>
ESPALIER_INLINE Float<W> LoadWidePartial(const T* p, int64_t n) {
  T padded[W] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return LoadWide<W>(padded);
}

// Adds the products of a[0..R) with S rows of b to acc[r * C + c], c < S, over n elements. kAhead:
// as it goes, asks memory for what comes after in each row of b, and where these end, in the S rows
// behind them, each `stride` elements after the one before (which need not be memory). It fills the
// second-level cache: the first has too few lines in flight for memory's latency.
template <int W, int R, int C, int S, bool kAhead, typename A, typename B>
ESPALIER_INLINE void AddDotProducts(const A* const* a, const B* const* b, int64_t n, int64_t stride,
                                    Float<W>* acc) {
  const int64_t distance = std::min(kDotAhead, n);
  int64_t k = 0;
  for (; k + W <= n; k += W) {
    const int64_t ahead = k + distance < n ? k + distance : k + distance - n + S * stride;
    Float<W> left[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) left[r] = LoadWide<W>(a[r] + k);
#pragma GCC unroll 16
    for (int c = 0; c < S; ++c) {
      const Float<W> right = LoadWide<W>(b[c] + k);
      if constexpr (kAhead) __builtin_prefetch(b[c] + ahead, 0, 2);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r * C + c] = left[r] * right + acc[r * C + c];
    }
  }
  if (k < n) {
    Float<W> left[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) left[r] = LoadWidePartial<W>(a[r] + k, n - k);
#pragma GCC unroll 16
    for (int c = 0; c < S; ++c) {
      const Float<W> right = LoadWidePartial<W>(b[c] + k, n - k);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r * C + c] = left[r] * right + acc[r * C + c];
    }
  }
}

// products[r * C + c] = dot(a[r], b[c]) over n elements; R * C must be W. kAhead: the rows of b lie
// in order, `stride` elements from each to the next, and are asked from memory ahead of their use.
template <int W, int R, int C, bool kAhead = false, typename A, typename B>
ESPALIER_INLINE Float<W> DotTile(const A* const* a, const B* const* b, int64_t n,
                                 int64_t stride = 0) {
  static_assert(R * C == W);
  Float<W> acc[W] = {};
  constexpr int kStreams = kAhead ? std::min(C, kDotStreams) : C;
#pragma GCC unroll 2
  for (int c = 0; c < C; c += kStreams) {
    AddDotProducts<W, R, C, kStreams, kAhead>(a, b + c, n, stride, acc + c);
  }
  return SumEach<W>(acc);
}

}  // namespace espalier::simd
