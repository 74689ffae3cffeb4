#include "ops/cpu/gemm/quantized_gemm_amx.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/simd/amx.h"

// 64-byte registers spill to memory aligned to 64 bytes, which the stack of GCC 12's
// AddressSanitizer is not (GCC bug 110027).
#define ESPALIER_TILES ESPALIER_AMX __attribute__((no_sanitize("address")))

namespace espalier {
namespace {

constexpr int64_t kRows = 16;                              // of a tile
constexpr int64_t kTileBytes = kPackGroup * kPackOutputs;  // of a group of weights, unpacked
// Prefetch distance of the weights, in bytes.
constexpr int64_t kAhead = 2048;

// Per group of k, for 16 rows: their scales, and their corrections. With 8 bits a correction is
// -128 times the sum of the row (weights are stored with 128 added), with 4 bits the sum times the
// scale, to be multiplied by the weights' minima. Rows that do not exist have zeros.
struct RowTile {
  const int8_t* q;
  const float* scale;    // [groups][16]
  const void* addition;  // [groups][16], int32 or f32
};

template <bool kFourBits>
ESPALIER_TILES inline void AddGroup(const int32_t* dots, const float* scales, const void* additions,
                                    __m512 scale, __m512 minimum, __m512* total) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    __m512i dot = _mm512_load_si512(dots + r * kPackOutputs);
    if constexpr (!kFourBits) {
      dot = _mm512_add_epi32(dot, _mm512_set1_epi32(static_cast<const int32_t*>(additions)[r]));
    }
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(scales[r]));
    total[r] = _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(0xffff, dot), factor, total[r]);
    if constexpr (kFourBits) {
      total[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(static_cast<const float*>(additions)[r]),
                                 total[r]);
    }
  }
}

ESPALIER_TILES inline __m512 Halves(const uint8_t* f16) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(f16)));
}

// Computes f32[16][16] of one block of weights; `tiles` holds 4-bit weights unpacked.
template <bool kFourBits, bool kLeft>
ESPALIER_TILES void RunTile(const PackedWeights& shape, const uint8_t* block, const uint8_t* tiles,
                            const RowTile& x, bool prefetch, float* sums) {
  alignas(64) int32_t dots[2][kRows * kPackOutputs];
  if constexpr (kLeft) std::memset(dots, 0, sizeof(dots));
  __m512 total[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) total[r] = _mm512_setzero_ps();
  const int64_t groups = shape.groups(), stride = groups * kPackGroup;
  // Double-buffered: the products of one group are computed while those of the other are added.
  // AMX tile registers (must be literals): 0 sums, 2 rows of x; 3 and 5 the same for the last,
  // partial rows; 6 weights.
  const auto multiply = [&](int64_t g) ESPALIER_TILES {
    const uint8_t* const weights = kFourBits ? tiles + g * kTileBytes : block + shape.numbers_at(g);
    if (prefetch) {
      for (int64_t at = 0; at < shape.group_bytes(); at += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(block + shape.numbers_at(g) + at + kAhead),
                     _MM_HINT_T0);
      }
    }
    if constexpr (kLeft) {
      _tile_zero(3);
      _tile_loadd(5, x.q + g * kPackGroup, stride);
      _tile_loadd(6, weights, 64);
      _tile_dpbsud(3, 5, 6);
      _tile_stored(3, dots[g % 2], 64);
    } else {
      _tile_zero(0);
      _tile_loadd(2, x.q + g * kPackGroup, stride);
      _tile_loadd(6, weights, 64);
      _tile_dpbsud(0, 2, 6);
      _tile_stored(0, dots[g % 2], 64);
    }
  };
  multiply(0);
  for (int64_t g = 0; g < groups; ++g) {
    if (g + 1 < groups) multiply(g + 1);
    const __m512 scale = Halves(block + shape.scales_at(g));
    __m512 minimum = _mm512_setzero_ps();
    if constexpr (kFourBits) {
      minimum = Halves(block + shape.minima_at(g));
    }
    AddGroup<kFourBits>(dots[g % 2], x.scale + g * kRows,
                        static_cast<const uint8_t*>(x.addition) + g * kRows * 4, scale, minimum,
                        total);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) _mm512_store_ps(sums + r * kPackOutputs, total[r]);
}

ESPALIER_TILES void Unpack(const PackedWeights& shape, const uint8_t* block, uint8_t* tiles) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int64_t g = 0; g < shape.groups(); ++g) {
    const uint8_t* const numbers = block + shape.numbers_at(g);
    for (int64_t at = 0; at < shape.group_bytes(); at += 64, tiles += 128) {
      const __m512i w = _mm512_loadu_si512(numbers + at);
      _mm_prefetch(reinterpret_cast<const char*>(numbers + at + kAhead), _MM_HINT_T0);
      _mm512_store_si512(tiles, _mm512_and_si512(w, low));
      _mm512_store_si512(tiles + 64, _mm512_and_si512(_mm512_srli_epi16(w, 4), low));
    }
  }
}

template <bool kFourBits>
ESPALIER_TILES void Run(const PackedWeights& shape, const uint8_t* weights, const QuantizedRows& x,
                        int64_t begin, int64_t end, float* y) {
  const int64_t groups = shape.groups(), tiles = (x.rows + kRows - 1) / kRows;
  std::vector<float> scales(tiles * groups * kRows, 0.0f);
  std::vector<int32_t> additions(tiles * groups * kRows, 0);
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t from = row * groups + g, to = (row / kRows * groups + g) * kRows + row % kRows;
      scales[to] = x.scale[from];
      if constexpr (kFourBits) {
        std::memcpy(&additions[to], &x.scaled_sum[from], sizeof(float));
      } else {
        additions[to] = -128 * x.sum[from];
      }
    }
  }
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  std::vector<Line> unpacked(kFourBits ? groups * kTileBytes / 64 : 0);

  const int64_t left = x.rows % kRows;
  amx::TileShapes shapes;
  shapes.Set(0, kRows, 64);
  shapes.Set(2, kRows, kPackGroup);
  if (left > 0) {
    shapes.Set(3, left, 64);
    shapes.Set(5, left, kPackGroup);
  }
  shapes.Set(6, kPackGroup / 4, 64);
  amx::Tiles configured;
  configured.Configure(shapes);

  alignas(64) float sums[kRows * kPackOutputs];
  for (int64_t b = begin; b < end; ++b) {
    const uint8_t* const block = weights + b * shape.block_bytes();
    uint8_t* const numbers = kFourBits ? unpacked.data()->bytes : nullptr;
    if constexpr (kFourBits) Unpack(shape, block, numbers);
    const int64_t first = b * kPackOutputs, valid = std::min(kPackOutputs, shape.out - first);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = t * kRows, rows = std::min(kRows, x.rows - row);
      const RowTile tile{x.q + row * groups * kPackGroup, &scales[t * groups * kRows],
                         &additions[t * groups * kRows]};
      const bool prefetch = !kFourBits && t == 0;
      if (rows == kRows) {
        RunTile<kFourBits, false>(shape, block, numbers, tile, prefetch, sums);
      } else {
        RunTile<kFourBits, true>(shape, block, numbers, tile, prefetch, sums);
      }
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(sums + r * kPackOutputs, valid, y + (row + r) * shape.out + first);
      }
    }
  }
}

}  // namespace

void QuantizedGemmAmx(const PackedWeights& shape, const uint8_t* weights, const QuantizedRows& x,
                      int64_t begin, int64_t end, float* y) {
  if (x.rows == 0 || begin >= end) return;
  if (shape.bits == 4) {
    Run<true>(shape, weights, x, begin, end, y);
  } else {
    Run<false>(shape, weights, x, begin, end, y);
  }
}

}  // namespace espalier
