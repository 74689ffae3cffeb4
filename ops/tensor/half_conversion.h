// Converts bf16 and f16 to f32 and back.
#pragma once

#include <bit>
#include <cstdint>

#include "ops/tensor/dtype.h"

namespace espalier {

inline float BF16ToF32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// Rounds to nearest even; NaN stays NaN.
inline uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float F16ToF32(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  const uint32_t rest = value & 0x7fffu;
  if (rest >= 0x7c00u) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  }
  // The multiplication moves the exponent and normalizes subnormals.
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// Rounds to nearest even; beyond 65504 to infinity.
inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (rest < 0x38800000u) {
    // Subnormal in f16: adding 0.5 leaves the wanted bits, rounded to even, at the end of the
    // mantissa.
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = rest + 0xfffu + (rest >> 13 & 1u) - 0x38000000u;
  return static_cast<uint16_t>(sign | rounded >> 13);
}

// Converts the bits of an element of a 16-bit type (IsNarrow).
inline float NarrowToF32(DType type, uint16_t bits) {
  return type == DType::kBF16 ? BF16ToF32(bits) : F16ToF32(bits);
}

}  // namespace espalier
