// Element formats of the KV cache besides f32: bf16, f16, int8 with scales. simd::DotTile reads
// them W at a time as f32 by LoadWide. Inline assembly is used where the intrinsic needs a target
// attribute, which an inlined template cannot have, and the compiler's own code is longer.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/gemm/dot_tile.h"

namespace espalier::kv {

using simd::Half;

struct BFloat16 {
  uint16_t bits;
};

// An int8 element, to be multiplied by the scale of its slot and head.
struct ScaledInt8 {
  int8_t value;
};

// For f32 and f16.
using simd::LoadWide;

template <int W>
ESPALIER_INLINE simd::Float<W> LoadWide(const BFloat16* p) {
  return simd::LoadWide<W>(&p->bits);
}

template <int W>
struct SmallTypes {
  typedef int8_t Bytes __attribute__((vector_size(W)));
  typedef int16_t Shorts __attribute__((vector_size(2 * W)));
};

template <int W>
ESPALIER_INLINE simd::Float<W> LoadWide(const ScaledInt8* p) {
  typename SmallTypes<W>::Bytes v;
  std::memcpy(&v, p, sizeof(v));
  simd::Int<W> whole;
  if constexpr (W >= 8) {  // GCC 12 takes eight
    asm("vpmovsxbd %1, %0" : "=v"(whole) : "v"(v));
  } else {
    whole = __builtin_convertvector(__builtin_convertvector(v, typename SmallTypes<W>::Shorts),
                                    simd::Int<W>);
  }
  return __builtin_convertvector(whole, simd::Float<W>);
}

ESPALIER_INLINE float Wide(float x) { return x; }
ESPALIER_INLINE float Wide(BFloat16 x) { return BF16ToF32(x.bits); }
ESPALIER_INLINE float Wide(Half x) { return F16ToF32(x.bits); }
ESPALIER_INLINE float Wide(ScaledInt8 x) { return static_cast<float>(x.value); }

inline void Narrow(float x, float* to) { *to = x; }
inline void Narrow(float x, BFloat16* to) { to->bits = F32ToBF16(x); }
inline void Narrow(float x, Half* to) { to->bits = F32ToF16(x); }

// Stores one head of one slot, n elements, rounded to nearest. Only ScaledInt8 uses `scale`: a
// 127th of the largest magnitude. If that is not finite, or too small, all elements become 0 and
// the scale carries the result: 0 times NaN or an infinity is NaN.
template <typename C>
void StoreHead(const float* x, int64_t n, C* to, float* /*scale*/) {
  for (int64_t i = 0; i < n; ++i) Narrow(x[i], to + i);
}

inline void StoreHead(const float* x, int64_t n, ScaledInt8* to, float* scale) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    if (!(magnitude <= largest)) largest = magnitude;
    if (std::isnan(magnitude)) break;
  }
  *scale = largest / 127;
  const bool usable = std::isfinite(largest) && *scale >= std::numeric_limits<float>::min();
  const float inverse = usable ? 1 / *scale : 0;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  for (int64_t i = 0; i < n; ++i) {
    to[i].value = usable ? static_cast<int8_t>(x[i] * inverse + kRound - kRound) : int8_t{0};
  }
}

}  // namespace espalier::kv
