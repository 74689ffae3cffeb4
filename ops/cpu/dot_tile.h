// Dot products of rows with rows, each computed in one fixed order: lane j of a vector of W partial
// sums takes elements j, j + W, j + 2W, ... by fused multiply-add (where the CPU has it), and the
// lanes are added by the tree of simd::SumEach. A product's bits depend on its two rows alone, not
// on how many are computed together.
#pragma once

#include "ops/cpu/simd.h"

namespace espalier::simd {

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

// products[r * C + c] = dot(a[r], b[c]) over n elements; R * C must be W. kAhead: as it goes, asks
// for what lies `ahead` elements behind each element of b; that need not be memory.
template <int W, int R, int C, bool kAhead = false, typename A, typename B>
ESPALIER_INLINE Float<W> DotTile(const A* const* a, const B* const* b, int64_t n,
                                 int64_t ahead = 0) {
  static_assert(R * C == W);
  Float<W> acc[W] = {};
  int64_t k = 0;
  for (; k + W <= n; k += W) {
    Float<W> left[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) left[r] = LoadWide<W>(a[r] + k);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const Float<W> right = LoadWide<W>(b[c] + k);
      if constexpr (kAhead) __builtin_prefetch(b[c] + (k + ahead));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r * C + c] = left[r] * right + acc[r * C + c];
    }
  }
  if (k < n) {
    Float<W> left[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) left[r] = LoadWidePartial<W>(a[r] + k, n - k);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const Float<W> right = LoadWidePartial<W>(b[c] + k, n - k);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r * C + c] = left[r] * right + acc[r * C + c];
    }
  }
  return SumEach<W>(acc);
}

}  // namespace espalier::simd
