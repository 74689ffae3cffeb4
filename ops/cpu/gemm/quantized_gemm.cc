#include "ops/cpu/gemm/quantized_gemm.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/gemm/quantized_gemm_amx.h"
#include "ops/cpu/simd/amx.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

// Rows that pass over a block of weights together, at most.
constexpr int kMaxRows = 8;
// Minimum rows for AMX: fewer leave most of a tile empty, and unpacking 4 bits costs more than it
// saves.
constexpr int64_t kFewestAmxRows = 4, kFewestAmxRows4 = 6;
// Prefetch distance of the weights, in bytes.
constexpr int64_t kAhead = 8704;

// Whether to prefetch in software. With few rows, a line of weights is used faster than memory
// delivers it: the hardware prefetcher then runs at memory speed, and software prefetch slows it.
// With more rows the hardware prefetcher falls behind.
constexpr bool AskedByVnni(int rows, bool four_bits) { return rows > (four_bits ? 1 : 2); }
constexpr bool AskedByAvx2(int rows, bool four_bits) { return rows > (four_bits ? 0 : 1); }

#define ESPALIER_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")))
#define ESPALIER_AVX2 __attribute__((target("avx2,fma,f16c")))

int32_t Word(const int8_t* q) {
  int32_t word;
  std::memcpy(&word, q, sizeof(word));
  return word;
}

template <bool kFourBits>
constexpr PackedWeights kForm = {kFourBits ? 4 : 8};

struct Tile {
  const PackedWeights& shape;
  const uint8_t* block;
  const QuantizedRows& x;
  int64_t row;

  const int8_t* Q(int r, int64_t group) const {
    return x.q + ((row + r) * x.groups + group) * kPackGroup;
  }
  float Scale(int r, int64_t group) const { return x.scale[(row + r) * x.groups + group]; }
  int32_t Sum(int r, int64_t group) const { return x.sum[(row + r) * x.groups + group]; }
  float ScaledSum(int r, int64_t group) const { return x.scaled_sum[(row + r) * x.groups + group]; }
  template <bool kFourBits>
  const uint8_t* Weights(int64_t group) const {
    return block + kForm<kFourBits>.numbers_at(group);
  }
  template <bool kFourBits>
  const uint8_t* Scales(int64_t group) const {
    return block + kForm<kFourBits>.scales_at(group);
  }
  const uint8_t* Minima(int64_t group) const { return block + kForm<true>.minima_at(group); }
};

// Prefetches a fixed distance behind a group, where further blocks follow. (The address need not be
// valid.) Into L2: L1 has too few lines in flight for the latency of memory. Always inlined: GCC 12
// drops calls of a function that only prefetches.
template <bool kFourBits>
ESPALIER_INLINE void PrefetchWeights(const Tile& t, int64_t group) {
  const bool unit_begins = group % kForm<kFourBits>.unit_groups() == 0;
  const uint8_t* const weights = t.Weights<kFourBits>(group);
  if (unit_begins) _mm_prefetch(reinterpret_cast<const char*>(weights - 64 + kAhead), _MM_HINT_T1);
  for (int64_t at = 0; at < kForm<kFourBits>.group_bytes(); at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(weights + at + kAhead), _MM_HINT_T1);
  }
}

// The unmasked forms of these two intrinsics leave a register undefined, and GCC 12 warns.
ESPALIER_VNNI inline __m512 HalvesToFloats(const uint8_t* f16) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(f16)));
}

ESPALIER_VNNI inline __m512 WholeToFloats(__m512i x) { return _mm512_maskz_cvtepi32_ps(0xffff, x); }

// Sums of R rows, f32[R][16]. kPrefetch: prefetches the weights.
template <int R, bool kFourBits, bool kPrefetch>
ESPALIER_VNNI void TileVnni(const Tile& t, float* sums) {
  const __m512i low = _mm512_set1_epi8(15);
  __m512 total[R];
  for (__m512& sum : total) sum = _mm512_setzero_ps();
  for (int64_t g = 0; g < t.x.groups; ++g) {
    if constexpr (kPrefetch) PrefetchWeights<kFourBits>(t, g);
    const int8_t* q[R];
    for (int r = 0; r < R; ++r) q[r] = t.Q(r, g);
    const uint8_t* const weights = t.Weights<kFourBits>(g);
    // Each dot product depends on the previous one: few rows need several independent chains.
    constexpr int kChains = R < 4 ? 2 : 1;
    __m512i dot[kChains * R];
    for (int r = 0; r < R; ++r) {
      dot[(kChains - 1) * R + r] = _mm512_setzero_si512();
      // 8-bit weights are stored with 128 added.
      dot[r] = kFourBits ? _mm512_setzero_si512() : _mm512_set1_epi32(-128 * t.Sum(r, g));
    }
    for (int k = 0; k < (kFourBits ? 4 : 8); ++k) {
      const __m512i w = _mm512_loadu_si512(weights + 64 * k);
      if constexpr (kFourBits) {
        const __m512i first = _mm512_and_si512(w, low);
        const __m512i second = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
        for (int r = 0; r < R; ++r) {
          dot[r] = _mm512_dpbusd_epi32(dot[r], first, _mm512_set1_epi32(Word(q[r] + 8 * k)));
          __m512i& odd = dot[(kChains - 1) * R + r];
          odd = _mm512_dpbusd_epi32(odd, second, _mm512_set1_epi32(Word(q[r] + 8 * k + 4)));
        }
      } else {
        for (int r = 0; r < R; ++r) {
          __m512i& chain = dot[k % kChains * R + r];
          chain = _mm512_dpbusd_epi32(chain, w, _mm512_set1_epi32(Word(q[r] + 4 * k)));
        }
      }
    }
    const __m512 scale = HalvesToFloats(t.Scales<kFourBits>(g));
    __m512 minimum = _mm512_setzero_ps();
    if constexpr (kFourBits) minimum = HalvesToFloats(t.Minima(g));
    for (int r = 0; r < R; ++r) {
      const __m512i exact = kChains == 2 ? _mm512_add_epi32(dot[r], dot[R + r]) : dot[r];
      total[r] = _mm512_fmadd_ps(WholeToFloats(exact),
                                 _mm512_mul_ps(scale, _mm512_set1_ps(t.Scale(r, g))), total[r]);
      if constexpr (kFourBits) {
        total[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(t.ScaledSum(r, g)), total[r]);
      }
    }
  }
  for (int r = 0; r < R; ++r) _mm512_storeu_ps(sums + r * kPackOutputs, total[r]);
}

// Adds the four products of unsigned and signed bytes of each word. REQUIRES: the sum of two fits
// 16 bits (vpmaddubsw).
ESPALIER_AVX2 inline __m256i AddDots(__m256i sum, __m256i u, __m256i s) {
  const __m256i pairs = _mm256_maddubs_epi16(u, s);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Adds the products of a group with eight outputs, half a block, to total[R].
template <int R, bool kFourBits>
ESPALIER_AVX2 ESPALIER_INLINE void AddGroupAvx2(const Tile& t, int64_t g, int half, __m256* total) {
  const __m256i low = _mm256_set1_epi8(15);
  const uint8_t* const weights = t.Weights<kFourBits>(g) + 32 * half;
  __m256i dot[R];
  for (int r = 0; r < R; ++r) dot[r] = _mm256_setzero_si256();
  for (int k = 0; k < (kFourBits ? 4 : 8); ++k) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 64 * k));
    if constexpr (kFourBits) {
      const __m256i first = _mm256_and_si256(w, low);
      const __m256i second = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
      for (int r = 0; r < R; ++r) {
        const int8_t* const q = t.Q(r, g) + 8 * k;
        dot[r] = AddDots(dot[r], first, _mm256_set1_epi32(Word(q)));
        dot[r] = AddDots(dot[r], second, _mm256_set1_epi32(Word(q + 4)));
      }
    } else {
      // |w| * (x with the sign of w): two of 128 * 127 fit, two of 255 * 127 would not.
      const __m256i whole = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
      const __m256i magnitude = _mm256_abs_epi8(whole);
      for (int r = 0; r < R; ++r) {
        const __m256i x = _mm256_set1_epi32(Word(t.Q(r, g) + 4 * k));
        dot[r] = AddDots(dot[r], magnitude, _mm256_sign_epi8(x, whole));
      }
    }
  }
  const auto halves = [&](const uint8_t* f16) ESPALIER_AVX2 {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(f16 + 16 * half)));
  };
  const __m256 scale = halves(t.Scales<kFourBits>(g));
  for (int r = 0; r < R; ++r) {
    const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(t.Scale(r, g)));
    total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), factor, total[r]);
    if constexpr (kFourBits) {
      total[r] = _mm256_fmadd_ps(halves(t.Minima(g)), _mm256_set1_ps(t.ScaledSum(r, g)), total[r]);
    }
  }
}

template <int R, bool kFourBits, bool kPrefetch>
ESPALIER_AVX2 void TileAvx2(const Tile& t, float* sums) {
  // Few rows leave registers for both halves of a block, so that it is read once.
  constexpr int kHalves = R <= 2 ? 2 : 1;
  for (int half = 0; half < 2; half += kHalves) {
    __m256 total[kHalves][R];
    for (auto& of_half : total) {
      for (__m256& sum : of_half) sum = _mm256_setzero_ps();
    }
    for (int64_t g = 0; g < t.x.groups; ++g) {
      if (kPrefetch && half == 0) PrefetchWeights<kFourBits>(t, g);
      AddGroupAvx2<R, kFourBits>(t, g, half, total[0]);
      if constexpr (kHalves == 2) AddGroupAvx2<R, kFourBits>(t, g, 1, total[1]);
    }
    for (int h = 0; h < kHalves; ++h) {
      for (int r = 0; r < R; ++r) {
        _mm256_storeu_ps(sums + r * kPackOutputs + 8 * (half + h), total[h][r]);
      }
    }
  }
}

template <int R, bool kFourBits>
void TilePortable(const Tile& t, float* sums) {
  std::fill_n(sums, R * kPackOutputs, 0.0f);
  for (int64_t g = 0; g < t.x.groups; ++g) {
    const uint8_t* const weights = t.Weights<kFourBits>(g);
    for (int r = 0; r < R; ++r) {
      const int8_t* const q = t.Q(r, g);
      const float x_scale = t.Scale(r, g);
      for (int64_t o = 0; o < kPackOutputs; ++o) {
        int32_t dot = kFourBits ? 0 : -128 * t.Sum(r, g);
        for (int64_t i = 0; i < kPackGroup; ++i) {
          const uint8_t byte = weights[t.shape.ByteOf(i, o)];
          dot += q[i] * (kFourBits ? (i % 8 < 4 ? byte & 15 : byte >> 4) : byte);
        }
        const auto f16 = [&](const uint8_t* from) {
          uint16_t value;
          std::memcpy(&value, from + 2 * o, sizeof(value));
          return F16ToF32(value);
        };
        float& sum = sums[r * kPackOutputs + o];
        sum = std::fma(static_cast<float>(dot), f16(t.Scales<kFourBits>(g)) * x_scale, sum);
        if constexpr (kFourBits) sum = std::fma(f16(t.Minima(g)), t.ScaledSum(r, g), sum);
      }
    }
  }
}

// kFirst: these rows are the first to read the block, from memory; later ones hit the cache.
template <int R, bool kFourBits, bool kFirst>
void RunTile(QuantizedIsa isa, const Tile& tile, float* sums) {
  switch (isa) {
    case QuantizedIsa::kAmx:
    case QuantizedIsa::kAvx512Vnni:
      return TileVnni < R, kFourBits, kFirst && AskedByVnni(R, kFourBits) > (tile, sums);
    case QuantizedIsa::kAvx2:
      return TileAvx2 < R, kFourBits, kFirst && AskedByAvx2(R, kFourBits) > (tile, sums);
    case QuantizedIsa::kPortable:
      return TilePortable<R, kFourBits>(tile, sums);
  }
}

template <int R, bool kFourBits>
void RunTile(QuantizedIsa isa, const Tile& tile, float* sums) {
  tile.row == 0 ? RunTile<R, kFourBits, true>(isa, tile, sums)
                : RunTile<R, kFourBits, false>(isa, tile, sums);
}

// Computes y[r, o] of R rows and a block, of which outputs from shape.out on are not stored.
template <int R>
void RunTile(QuantizedIsa isa, const Tile& tile, int64_t block, float* y) {
  float sums[R * kPackOutputs];
  tile.shape.bits == 4 ? RunTile<R, true>(isa, tile, sums) : RunTile<R, false>(isa, tile, sums);
  const int64_t output = block * kPackOutputs;
  const int64_t valid = std::min(kPackOutputs, tile.shape.out - output);
  for (int64_t r = 0; r < R; ++r) {
    std::copy_n(sums + r * kPackOutputs, valid, y + (tile.row + r) * tile.shape.out + output);
  }
}

// The same for `rows` <= R rows.
template <int R>
void RunRows(QuantizedIsa isa, const Tile& tile, int rows, int64_t block, float* y) {
  if constexpr (R > 1) {
    if (rows < R) return RunRows<R - 1>(isa, tile, rows, block, y);
  }
  RunTile<R>(isa, tile, block, y);
}

// The same for all rows, in as few parts as possible, of about equal size.
void RunBlock(QuantizedIsa isa, const PackedWeights& shape, const uint8_t* weights,
              const QuantizedRows& x, int64_t block, float* y) {
  for (int64_t row = 0; row < x.rows;) {
    const Tile tile{shape, weights + block * shape.block_bytes(), x, row};
    const int64_t left = x.rows - row, parts = (left + kMaxRows - 1) / kMaxRows;
    const int rows = static_cast<int>((left + parts - 1) / parts);
    RunRows<kMaxRows>(isa, tile, rows, block, y);
    row += rows;
  }
}

}  // namespace

QuantizedIsa BestQuantizedIsa() {
  static const QuantizedIsa best = [] {
    if (amx::Available()) return QuantizedIsa::kAmx;
    if (simd::BestIsa() == simd::Isa::kAvx512 && __builtin_cpu_supports("avx512vnni")) {
      return QuantizedIsa::kAvx512Vnni;
    }
    // Every CPU with AVX2 and FMA has F16C.
    return simd::BestIsa() != simd::Isa::kSse2 ? QuantizedIsa::kAvx2 : QuantizedIsa::kPortable;
  }();
  return best;
}

void QuantizedGemm(QuantizedIsa isa, const PackedWeights& shape, const uint8_t* weights,
                   const QuantizedRows& x, int64_t begin, int64_t end, float* y) {
  if (isa == QuantizedIsa::kAmx && x.rows >= (shape.bits == 4 ? kFewestAmxRows4 : kFewestAmxRows)) {
    return QuantizedGemmAmx(shape, weights, x, begin, end, y);
  }
  for (int64_t block = begin; block < end; ++block) RunBlock(isa, shape, weights, x, block, y);
}

}  // namespace espalier
