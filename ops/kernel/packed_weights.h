// How a weight matrix of 8 or 4 bits lies in memory, the same for every backend: unsigned numbers q
// in groups of 32 inputs that share a scale (and, with 4 bits, a minimum), 16 outputs beside each
// other, so that a product reads the weights from first to last, once, and four consecutive inputs
// of an output are one 32-bit word.
//
// A block holds 16 outputs: the numbers of all groups, then their scales f16[groups][16], then,
// with 4 bits, their minima f16[groups][16], and padding up to a multiple of 64 bytes. Within a
// group:
//   8 bits: byte 64 * (i / 4) + 4 * output + i % 4 is input i; the weight is (q - 128) * scale.
//   4 bits: byte 64 * (i / 8) + 4 * output + i % 4 holds input i with i % 8 < 4 in its low half,
//   and
//           input i with i % 8 >= 4 in its high half; the weight is q * scale + minimum.
// Outputs and inputs beyond the matrix have scale and minimum 0.
#pragma once

#include <cstdint>

namespace espalier {

constexpr int64_t kPackGroup = 32;
constexpr int64_t kPackOutputs = 16;

struct PackedWeights {
  int bits = 8;  // or 4
  int64_t out = 0, in = 0;

  constexpr int64_t blocks() const { return (out + kPackOutputs - 1) / kPackOutputs; }
  constexpr int64_t groups() const { return (in + kPackGroup - 1) / kPackGroup; }
  constexpr int64_t group_bytes() const { return kPackGroup * kPackOutputs * bits / 8; }
  constexpr int64_t scales_offset() const { return groups() * group_bytes(); }
  constexpr int64_t scales_bytes() const { return groups() * kPackOutputs * 2; }
  constexpr int64_t minima_offset() const { return scales_offset() + scales_bytes(); }
  constexpr int64_t block_bytes() const {
    const int64_t bytes = minima_offset() + (bits == 4 ? scales_bytes() : 0);
    return (bytes + 63) / 64 * 64;
  }

  // Byte of a group, for input i of the group and an output of the block.
  constexpr int64_t ByteOf(int64_t i, int64_t output) const {
    return 64 * (i / (bits == 4 ? 8 : 4)) + 4 * output + i % 4;
  }
};

}  // namespace espalier
