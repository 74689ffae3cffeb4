// The memory layout of a weight matrix quantized to 8 or 4 bits, the same for every backend:
// unsigned numbers q in groups of 32 inputs that share a scale (and, with 4 bits, a minimum).
// 16 outputs are interleaved, and four consecutive inputs of an output form one 32-bit word.
//
// A block holds 16 outputs as a sequence of units. A unit is 64 bytes of scales followed by the
// numbers they apply to: with 8 bits scales f16[2][16] and two groups, with 4 bits scales f16[16],
// minima f16[16] and one group. If the number of 8-bit groups is odd, the last unit has one group.
// A product therefore reads a matrix sequentially, which suits the hardware prefetcher: with the
// scales behind each block's numbers it was 10 to 20 % slower. Within a group:
//   8 bits: byte 64 * (i / 4) + 4 * output + i % 4 is input i; the weight is (q - 128) * scale.
//   4 bits: byte 64 * (i / 8) + 4 * output + i % 4 holds input i with i % 8 < 4 in its low half and
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
  constexpr int64_t unit_groups() const { return bits == 4 ? 1 : 2; }
  constexpr int64_t group_bytes() const { return kPackGroup * kPackOutputs * bits / 8; }
  constexpr int64_t block_bytes() const {
    return (groups() + unit_groups() - 1) / unit_groups() * 64 + groups() * group_bytes();
  }

  // A matrix can be cut along its inputs at multiples of unit(): the parts are packed matrices of
  // their own, and their bytes are contiguous.
  constexpr int64_t unit() const { return unit_groups() * kPackGroup; }

  // Byte offsets of a group's data in its block.
  constexpr int64_t numbers_at(int64_t group) const {
    return (group / unit_groups() + 1) * 64 + group * group_bytes();
  }
  constexpr int64_t scales_at(int64_t group) const {
    const int64_t in_unit = group % unit_groups();
    return numbers_at(group - in_unit) - 64 + in_unit * kPackOutputs * 2;
  }
  constexpr int64_t minima_at(int64_t group) const { return scales_at(group) + kPackOutputs * 2; }

  // Byte offset within a group of input i of the group and an output of the block.
  constexpr int64_t ByteOf(int64_t i, int64_t output) const {
    return 64 * (i / (bits == 4 ? 8 : 4)) + 4 * output + i % 4;
  }
};

}  // namespace espalier
