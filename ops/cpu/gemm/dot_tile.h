// Batch-invariant dot products of rows with rows, each in one fixed order: lane j of a vector of W
// partial sums accumulates elements j, j + W, j + 2W, ... by fused multiply-add (where the CPU has
// it), and the lanes are added by the tree of simd::SumEach. A product's bits depend on its two
// rows alone, not on how many are computed together.
#pragma once

#include <algorithm>

#include "ops/cpu/simd/simd.h"

namespace espalier::simd {

// Prefetch distance within a row, in elements; for shorter rows the minimum distance in bytes.
constexpr int64_t kDotAhead = 1024;
constexpr int64_t kDotAheadBytes = 8192;
// Rows read concurrently, at most: with sixteen, memory bandwidth drops by a third.
constexpr int kDotStreams = 8;

struct Half {  // f16
  uint16_t bits;
};

// Loads W elements from p as f32; uint16_t is bf16.
template <int W>
ESPALIER_INLINE Float<W> LoadWide(const float* p) {
  return Load<W>(p);
}

template <int W>
ESPALIER_INLINE Float<W> LoadWide(const uint16_t* p) {
  typename Types<W>::Short v;
  typename Types<W>::Word wide;
  std::memcpy(&v, p, sizeof(v));
  if constexpr (W >= 8) {  // GCC 12 takes four or five
    asm("vpmovzxwd %1, %0" : "=v"(wide) : "vm"(v));
  } else {
    wide = __builtin_convertvector(v, typename Types<W>::Word);
  }
  return (Float<W>)(wide << 16);
}

// Inline assembly, since the intrinsic needs a target attribute, which an inlined template cannot
// have. Every processor with AVX2 and FMA has F16C.
template <int W>
ESPALIER_INLINE Float<W> LoadWide(const Half* p) {
  using Word = typename Types<W>::Word;
  typename Types<W>::Short v;
  std::memcpy(&v, p, sizeof(v));
  if constexpr (W >= 8) {
    Float<W> wide;
    asm("vcvtph2ps %1, %0" : "=v"(wide) : "v"(v));
    return wide;
  } else {  // as F16ToF32
    const Word word = __builtin_convertvector(v, Word), rest = word & 0x7fff;
    const Word finite = (Word)((Float<W>)(rest << 13) * 0x1p112f);
    const Word special = (rest << 13) | 0x7f800000u;
    return (Float<W>)((rest >= 0x7c00 ? special : finite) | (word & 0x8000) << 16);
  }
}

// As LoadWide, for a loop that is bound by memory: running further ahead of the prefetches costs 3
// to 10 % of the bandwidth. Here GCC 12 widens sixteen bf16 elements in five instructions.
template <int W, typename T>
ESPALIER_INLINE Float<W> LoadMemoryBound(const T* p) {
  return LoadWide<W>(p);
}

template <int W>
ESPALIER_INLINE Float<W> LoadMemoryBound(const uint16_t* p) {
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
// prefetches what follows in each row of b and, past their ends, the next rows, which lie `stride`
// elements apart (and need not be valid memory). Into L2: L1 has too few lines in flight for the
// latency of memory.
template <int W, int R, int C, int S, bool kAhead, typename A, typename B>
ESPALIER_INLINE void AddDotProducts(const A* const* a, const B* const* b, int64_t n, int64_t stride,
                                    Float<W>* acc) {
  constexpr bool kWaits = kAhead && R <= 4;
  // For the other shapes GCC keeps them in registers by itself.
  constexpr bool kPin = R == 3 || R > 4;
  const int64_t turn = S * std::max<int64_t>(stride, 1);
  const int64_t turns =
      n > kDotAhead ? 0 : std::max<int64_t>(1, kDotAheadBytes / (turn * sizeof(B)));
  const int64_t rest = turns > 0 ? 0 : kDotAhead, near = turns * turn + rest, far = near + turn - n;
  int64_t k = 0;
  for (; k + W <= n; k += W) {
    const int64_t ahead = k + (k + rest < n ? near : far);
    Float<W> left[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Float<W> once = LoadWide<W>(a[r] + k);
      left[r] = kPin ? Pin<W>(once) : once;
    }
#pragma GCC unroll 16
    for (int c = 0; c < S; ++c) {
      const Float<W> once = kWaits ? LoadMemoryBound<W>(b[c] + k) : LoadWide<W>(b[c] + k);
      const Float<W> right = kPin ? Pin<W>(once) : once;
      if constexpr (kAhead) __builtin_prefetch(b[c] + ahead, 0, 2);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r * C + c] = left[r] * right + acc[r * C + c];
    }
  }
  if (k < n) {
    Float<W> left[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) left[r] = LoadWidePartial<W>(a[r] + k, n - k);
#pragma GCC unroll 16
    for (int c = 0; c < S; ++c) {
      const Float<W> right = LoadWidePartial<W>(b[c] + k, n - k);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r * C + c] = left[r] * right + acc[r * C + c];
    }
  }
}

// Returns dot(a[r], b[c]) over n elements in lane r * C + c; R * C <= W, and other lanes are 0.
// kAhead: prefetches the rows of b, which lie `stride` elements apart.
template <int W, int R, int C, bool kAhead = false, typename A, typename B>
ESPALIER_INLINE Float<W> DotTile(const A* const* a, const B* const* b, int64_t n,
                                 int64_t stride = 0) {
  static_assert(R * C <= W);
  Float<W> acc[W] = {};
  constexpr int kStreams = kAhead ? std::min(C, kDotStreams) : C;
#pragma GCC unroll 2
  for (int c = 0; c < C; c += kStreams) {
    AddDotProducts<W, R, C, kStreams, kAhead>(a, b + c, n, stride, acc + c);
  }
  return SumEach<W>(acc);
}

}  // namespace espalier::simd
