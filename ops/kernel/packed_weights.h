// How a weight matrix of 8 or 4 bits lies in memory, the same for every backend: unsigned numbers q
// in groups of 32 inputs that share a scale (and, with 4 bits, a minimum), 16 outputs beside each
// other, and four consecutive inputs of an output are one 32-bit word.
//
// A block holds 16 outputs, unit after unit of inputs. A unit is 64 bytes of scales and the numbers
// that they belong to: with 8 bits scales f16[2][16] and two groups, with 4 bits scales f16[16],
// minima f16[16] and one group. Of an odd number of groups with 8 bits the last is a unit with one.
// So a product reads a matrix in one piece, from first to last, which is the order that processors
// fetch ahead best: scales that lay behind each block's numbers took a tenth to a fifth of the
// speed. Within a group:
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
  constexpr int64_t unit_groups() const { return bits == 4 ? 1 : 2; }
  constexpr int64_t group_bytes() const { return kPackGroup * kPackOutputs * bits / 8; }
  constexpr int64_t block_bytes() const {
    return (groups() + unit_groups() - 1) / unit_groups() * 64 + groups() * group_bytes();
  }

  // Inputs between whose multiples a matrix can be cut into parts that are packed matrices of their
  // own, and whose bytes lie in it in one piece.
  constexpr int64_t unit() const { return unit_groups() * kPackGroup; }

  // Where what belongs to a group lies in its block, in bytes.
  constexpr int64_t numbers_at(int64_t group) const {
    return (group / unit_groups() + 1) * 64 + group * group_bytes();
  }
  constexpr int64_t scales_at(int64_t group) const {
    const int64_t in_unit = group % unit_groups();
    return numbers_at(group - in_unit) - 64 + in_unit * kPackOutputs * 2;
  }
  constexpr int64_t minima_at(int64_t group) const { return scales_at(group) + kPackOutputs * 2; }

  // Byte of a group, for input i of the group and an output of the block.
  constexpr int64_t ByteOf(int64_t i, int64_t output) const {
    return 64 * (i / (bits == 4 ? 8 : 4)) + 4 * output + i % 4;
  }
};

}  // namespace espalier
