#include "worker/weights/gguf_blocks.h"

#include <cstring>

#include "ops/tensor/narrow.h"

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

// f16 scale, 32 signed bytes.
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

// f16 scales of the scales and of the minima; 8 pairs of a 6-bit scale and minimum in 12 bytes; 8
// groups of 32 4-bit numbers, two groups to 32 bytes.
void DecodeQ4_K(const unsigned char* block, float* out) {
  const float scale = F16ToF32(Half(block)), minimum = F16ToF32(Half(block + 2));
  const unsigned char* packed = block + 4;
  for (int group = 0; group < 8; ++group) {
    int s = packed[group] & 63, m = packed[group + 4] & 63;
    if (group >= 4) {
      s = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4;
      m = packed[group + 4] >> 4 | (packed[group] >> 6) << 4;
    }
    const float by = scale * static_cast<float>(s), less = minimum * static_cast<float>(m);
    const unsigned char* q = block + 16 + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      out[group * 32 + i] = by * static_cast<float>(group % 2 == 0 ? q[i] & 15 : q[i] >> 4) - less;
    }
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
    {8, "Q8_0", 32, 34, DecodeQ8_0},
    {2, "Q4_0", 32, 18, DecodeQ4_0},
    {12, "Q4_K", 256, 144, DecodeQ4_K},
    {14, "Q6_K", 256, 210, DecodeQ6_K},
};

}  // namespace

const GgufType* FindGgufType(uint32_t id) {
  for (const GgufType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

}  // namespace espalier
