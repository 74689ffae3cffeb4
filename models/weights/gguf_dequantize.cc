#include "models/weights/gguf_dequantize.h"

#include <cstring>

#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

uint16_t Half(const unsigned char* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}

void DecodeF32(const unsigned char* block, float* out) { std::memcpy(out, block, sizeof(*out)); }
void DecodeF16(const unsigned char* block, float* out) { *out = F16ToF32(Half(block)); }
void DecodeBF16(const unsigned char* block, float* out) { *out = BF16ToF32(Half(block)); }

// f16 scale, 32 signed bytes (Q8_0).
void DecodeQ8_0(const unsigned char* block, float* out) {
  const float scale = F16ToF32(Half(block));
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// f16 scale, 16 bytes: elements 0 to 15 in the low halves, 16 to 31 in the high ones, minus 8.
void DecodeQ4_0(const unsigned char* block, float* out) {
  const float scale = F16ToF32(Half(block));
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>((block[2 + i] & 15) - 8);
    out[16 + i] = scale * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

// f16 scale and minimum, then 4-bit numbers as in Q4_0 without the offset of 8.
void DecodeQ4_1(const unsigned char* block, float* out) {
  const float scale = F16ToF32(Half(block)), minimum = F16ToF32(Half(block + 2));
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(block[4 + i] & 15) + minimum;
    out[16 + i] = scale * static_cast<float>(block[4 + i] >> 4) + minimum;
  }
}

// The fifth bit of element i is bit i of 4 bytes before the 4-bit numbers.
int FiveBits(const unsigned char* fifth, int i) {
  const int four = i < 16 ? fifth[4 + i] & 15 : fifth[4 + i - 16] >> 4;
  return four | (fifth[i / 8] >> (i % 8) & 1) << 4;
}

void DecodeQ5_0(const unsigned char* block, float* out) {
  const float scale = F16ToF32(Half(block));
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(FiveBits(block + 2, i) - 16);
}

void DecodeQ5_1(const unsigned char* block, float* out) {
  const float scale = F16ToF32(Half(block)), minimum = F16ToF32(Half(block + 2));
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(FiveBits(block + 4, i)) + minimum;
  }
}

// Scale and minimum of a group of 32 in Q4_K and Q5_K. The block starts with the f16 scales of
// scales and minima, and 8 pairs of a 6-bit scale and minimum in 12 bytes.
struct GroupScale {
  float scale, minimum;
};
GroupScale ScaleOf(const unsigned char* block, int group) {
  const unsigned char* packed = block + 4;
  int s = packed[group] & 63, m = packed[group + 4] & 63;
  if (group >= 4) {
    s = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4;
    m = packed[group + 4] >> 4 | (packed[group] >> 6) << 4;
  }
  return {F16ToF32(Half(block)) * static_cast<float>(s),
          F16ToF32(Half(block + 2)) * static_cast<float>(m)};
}

// 8 groups of 32 4-bit numbers, two groups per 32 bytes.
void DecodeQ4_K(const unsigned char* block, float* out) {
  for (int group = 0; group < 8; ++group) {
    const GroupScale by = ScaleOf(block, group);
    const unsigned char* q = block + 16 + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int four = group % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      out[group * 32 + i] = by.scale * static_cast<float>(four) - by.minimum;
    }
  }
}

// As Q4_K with a fifth bit: that of element i of a group is bit `group` of byte i of 32 bytes
// before the 4-bit numbers.
void DecodeQ5_K(const unsigned char* block, float* out) {
  for (int group = 0; group < 8; ++group) {
    const GroupScale by = ScaleOf(block, group);
    const unsigned char* q = block + 48 + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int four = group % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      const int five = four | (block[16 + i] >> group & 1) << 4;
      out[group * 32 + i] = by.scale * static_cast<float>(five) - by.minimum;
    }
  }
}

// 16 groups of 16: one byte each (4-bit scale, 4-bit minimum); 2-bit numbers, where byte 32 h + b
// holds those at b, 32 + b, 64 + b and 96 + b of half h; f16 scales of both at the end.
void DecodeQ2_K(const unsigned char* block, float* out) {
  const float scale = F16ToF32(Half(block + 80)), minimum = F16ToF32(Half(block + 82));
  for (int i = 0; i < 256; ++i) {
    const int own = block[i / 16];
    const int q = block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    out[i] = scale * static_cast<float>(own & 15) * static_cast<float>(q) -
             minimum * static_cast<float>(own >> 4);
  }
}

// The third bit of element i is bit i / 32 of byte i % 32 of 32 bytes; then 2-bit numbers as in
// Q2_K; the 6-bit scales of 16 groups (4 bits of two in each of 8 bytes, 2 bits of four in each of
// 4 bytes); the f16 scale of the scales.
void DecodeQ3_K(const unsigned char* block, float* out) {
  const float scale = F16ToF32(Half(block + 108));
  const unsigned char* packed = block + 96;
  for (int i = 0; i < 256; ++i) {
    const int group = i / 16;
    const int low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
    const int own = (low | (packed[8 + group % 4] >> (group / 4 * 2) & 3) << 4) - 32;
    const int two = block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    const int q = (two | (block[i % 32] >> (i / 32) & 1) << 2) - 4;
    out[i] = scale * static_cast<float>(own) * static_cast<float>(q);
  }
}

// Low 4 bits of 256 numbers in 128 bytes, high 2 bits in 64, a signed scale for every 16, an f16
// scale of the scales. Each half of the block: four groups of 32.
void DecodeQ6_K(const unsigned char* block, float* out) {
  const float scale = F16ToF32(Half(block + 208));
  for (int half = 0; half < 2; ++half) {
    const unsigned char* low = block + half * 64;
    const unsigned char* high = block + 128 + half * 32;
    const unsigned char* scales = block + 192 + half * 8;
    for (int group = 0; group < 4; ++group) {
      for (int i = 0; i < 32; ++i) {
        const int bits = low[group % 2 * 32 + i];
        const int q =
            ((group < 2 ? bits & 15 : bits >> 4) | (high[i] >> (2 * group) & 3) << 4) - 32;
        const int own = static_cast<int8_t>(scales[group * 2 + i / 16]);
        out[half * 128 + group * 32 + i] = scale * static_cast<float>(own) * static_cast<float>(q);
      }
    }
  }
}

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, DecodeF32, DType::kF32},
    {1, "F16", 1, 2, DecodeF16, DType::kF16},
    {30, "BF16", 1, 2, DecodeBF16, DType::kBF16},
    {kGgufQ8_0, "Q8_0", 32, 34, DecodeQ8_0},
    {2, "Q4_0", 32, 18, DecodeQ4_0},
    {12, "Q4_K", 256, 144, DecodeQ4_K},
    {14, "Q6_K", 256, 210, DecodeQ6_K},
    {3, "Q4_1", 32, 20, DecodeQ4_1},
    {6, "Q5_0", 32, 22, DecodeQ5_0},
    {7, "Q5_1", 32, 24, DecodeQ5_1},
    {13, "Q5_K", 256, 176, DecodeQ5_K},
    {11, "Q3_K", 256, 110, DecodeQ3_K},
    {10, "Q2_K", 256, 84, DecodeQ2_K},
};

}  // namespace

std::string KnownGgufTypes() {
  std::string names;
  for (const GgufType& type : kTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

const GgufType* FindGgufType(uint32_t id) {
  for (const GgufType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

}  // namespace espalier
