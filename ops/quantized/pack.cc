#include "ops/quantized/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

struct Group {
  uint16_t scale = 0, minimum = 0;  // f16
  float step = 0, offset = 0;       // their f32 values; offset is the value of q = 0
  int levels = 0;

  uint8_t Round(float weight) const {
    if (!(step > 0)) return levels == 15 ? 0 : 128;
    const float q = std::nearbyint((weight - offset) / step);
    return static_cast<uint8_t>(std::clamp(q, 0.0f, static_cast<float>(levels)));
  }
};

// Whether there are at most 16 equidistant numbers.
struct EquidistantGrid {
  float step, least;
};

bool IsF16(float value) { return F16ToF32(F32ToF16(value)) == value; }

// Prefers a grid that contains all weights up to rounding and whose scale and minimum f16
// represents; else a grid that contains them; else the one from minimum to maximum. Numbers that
// were quantized to 4 bits before therefore come back unchanged.
EquidistantGrid EquidistantGridOf(const float* weights, int64_t n) {
  constexpr int kSteps = 15;
  constexpr float kOff = 1e-3F;  // of a step
  const auto [first, last] = std::minmax_element(weights, weights + n);
  const float least = *first, span = *last - least;
  EquidistantGrid best = {span / kSteps, least};
  bool found = false;
  for (int steps = 1; steps <= kSteps; ++steps) {
    const float per_unit = static_cast<float>(steps) / span;
    const bool fits = span == 0 || std::all_of(weights, weights + n, [&](float weight) {
                        const float at = (weight - least) * per_unit;
                        return std::fabs(at - std::nearbyint(at)) <= kOff;
                      });
    if (!fits) continue;
    // If all numbers are equal, steps are fractions of that number.
    const float step = (span > 0 ? span : std::fabs(least)) / static_cast<float>(steps);
    if (!std::exchange(found, true)) best = {span > 0 ? step : 0, least};
    if (!IsF16(step)) continue;
    const int most_below = span > 0 ? kSteps - steps : kSteps;
    for (int below = 0; below <= most_below; ++below) {
      const float start = least - static_cast<float>(below) * step;
      if (IsF16(start)) return {step, start};
    }
  }
  return best;
}

Group MakeGroup(int bits, const float* weights, int64_t n) {
  Group group;
  if (bits == 8) {
    float largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(weights[i]));
    group.scale = F32ToF16(largest / 127);
    group.step = F16ToF32(group.scale);
    group.offset = -128 * group.step;
    group.levels = 255;
  } else {
    const EquidistantGrid ladder = EquidistantGridOf(weights, n);
    group.scale = F32ToF16(ladder.step);
    group.minimum = F32ToF16(ladder.least);
    group.step = F16ToF32(group.scale);
    group.offset = F16ToF32(group.minimum);
    group.levels = 15;
  }
  return group;
}

void StoreF16(uint8_t* to, uint16_t value) { std::memcpy(to, &value, sizeof(value)); }

float LoadF16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return F16ToF32(value);
}

constexpr uint32_t kFlipSigns = 0x80808080;  // adds 128 to each of four signed bytes

// Interleaves a group's numbers of `lanes` rows, four by four as PackedWeights::ByteOf says, and
// makes them unsigned.
void PackQ8Numbers(const uint8_t* rows, int64_t row_bytes, int64_t lanes, uint8_t* numbers) {
  for (int64_t i = 0; i < kPackGroup; i += 4) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      uint32_t four;
      std::memcpy(&four, rows + lane * row_bytes + i, sizeof(four));
      four ^= kFlipSigns;
      std::memcpy(numbers + 16 * i + 4 * lane, &four, sizeof(four));
    }
  }
}

typedef uint32_t Words __attribute__((vector_size(16)));

inline Words LoadWords(const uint8_t* from) {
  Words words;
  std::memcpy(&words, from, sizeof(words));
  return words ^ kFlipSigns;
}

// The same of kPackOutputs rows: transposes squares of four rows and four words.
inline void PackQ8Numbers(const uint8_t* rows, int64_t row_bytes, uint8_t* numbers) {
  for (int64_t lane = 0; lane < kPackOutputs; lane += 4) {
    for (int64_t i = 0; i < kPackGroup; i += 16) {
      const uint8_t* const from = rows + lane * row_bytes + i;
      const Words a = LoadWords(from), b = LoadWords(from + row_bytes);
      const Words c = LoadWords(from + 2 * row_bytes), d = LoadWords(from + 3 * row_bytes);
      const Words low_ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const Words high_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Words low_cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
      const Words high_cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      const auto store = [to = numbers + 16 * i + 4 * lane](int64_t column, const Words& words) {
        std::memcpy(to + 64 * column, &words, sizeof(words));
      };
      store(0, __builtin_shufflevector(low_ab, low_cd, 0, 1, 4, 5));
      store(1, __builtin_shufflevector(low_ab, low_cd, 2, 3, 6, 7));
      store(2, __builtin_shufflevector(high_ab, high_cd, 0, 1, 4, 5));
      store(3, __builtin_shufflevector(high_ab, high_cd, 2, 3, 6, 7));
    }
  }
}

bool IsFiniteF16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return (value & 0x7c00) != 0x7c00;
}

}  // namespace

absl::Status Pack(absl::string_view name, const PackedWeights& shape, const float* weights,
                  uint8_t* packed) {
  std::fill_n(packed, shape.blocks() * shape.block_bytes(), 0);
  for (int64_t o = 0; o < shape.out; ++o) {
    uint8_t* const block = packed + o / kPackOutputs * shape.block_bytes();
    const int64_t lane = o % kPackOutputs;
    for (int64_t g = 0; g < shape.groups(); ++g) {
      const int64_t first = g * kPackGroup, n = std::min(kPackGroup, shape.in - first);
      const float* const row = weights + o * shape.in + first;
      const Group group = MakeGroup(shape.bits, row, n);
      for (int64_t i = 0; i < n; ++i) {
        if (!std::isfinite(row[i]) || !std::isfinite(group.step) || !std::isfinite(group.offset)) {
          return absl::InvalidArgumentError(
              absl::StrCat("weight '", name, "': row ", o, ", column ", first + i, " is ", row[i],
                           std::isfinite(row[i]) ? ", too large for a group scale of f16" : "",
                           "; such a matrix cannot be held in ", shape.bits, " bits"));
        }
        const uint8_t q = group.Round(row[i]);
        uint8_t& byte = block[shape.numbers_at(g) + shape.ByteOf(i, lane)];
        byte = static_cast<uint8_t>(shape.bits == 8 ? q : byte | (i % 8 < 4 ? q : q << 4));
      }
      StoreF16(block + shape.scales_at(g) + 2 * lane, group.scale);
      if (shape.bits == 4) StoreF16(block + shape.minima_at(g) + 2 * lane, group.minimum);
    }
  }
  return absl::OkStatus();
}

absl::Status PackQ8Blocks(absl::string_view name, const PackedWeights& shape, const uint8_t* blocks,
                          uint8_t* packed, int64_t first_row) {
  // Outputs that do not exist, and half a unit.
  if (shape.out % kPackOutputs != 0 || shape.groups() % shape.unit_groups() != 0) {
    std::fill_n(packed, shape.blocks() * shape.block_bytes(), 0);
  }
  const int64_t row_bytes = shape.groups() * kQ8BlockBytes;
  for (int64_t o = 0; o < shape.out; o += kPackOutputs, packed += shape.block_bytes()) {
    const int64_t lanes = std::min(kPackOutputs, shape.out - o);
    for (int64_t g = 0; g < shape.groups(); ++g) {
      const uint8_t* const first = blocks + o * row_bytes + g * kQ8BlockBytes;
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const uint8_t* const scale = first + lane * row_bytes;
        if (!IsFiniteF16(scale)) {
          return absl::InvalidArgumentError(
              absl::StrCat("weight '", name, "': row ", first_row + o + lane, ", column ",
                           g * kPackGroup, ": the scale of its block is ", LoadF16(scale)));
        }
        std::memcpy(packed + shape.scales_at(g) + 2 * lane, scale, 2);
      }
      uint8_t* const numbers = packed + shape.numbers_at(g);
      if (lanes == kPackOutputs) {
        PackQ8Numbers(first + 2, row_bytes, numbers);
      } else {
        PackQ8Numbers(first + 2, row_bytes, lanes, numbers);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ExpectF16(absl::string_view name, const float* weights, int64_t count) {
  constexpr float kTooLarge = 65520;  // rounds to infinity in f16
  const auto* const end = weights + count;
  const auto* const found = std::find_if(weights, end, [](float weight) {
    const float magnitude = std::fabs(weight);
    return magnitude >= kTooLarge && magnitude <= std::numeric_limits<float>::max();
  });
  if (found == end) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("weight '", name, "' has the number ", *found,
                   ", too large for f16, whose largest is 65504; bf16 can hold it"));
}

std::vector<float> Unpack(const PackedWeights& shape, const uint8_t* packed) {
  std::vector<float> weights(static_cast<size_t>(shape.out * shape.in));
  for (int64_t o = 0; o < shape.out; ++o) {
    const uint8_t* const block = packed + o / kPackOutputs * shape.block_bytes();
    const int64_t lane = o % kPackOutputs;
    for (int64_t i = 0; i < shape.in; ++i) {
      const int64_t g = i / kPackGroup, in_group = i % kPackGroup;
      const uint8_t byte = block[shape.numbers_at(g) + shape.ByteOf(in_group, lane)];
      const float scale = LoadF16(block + shape.scales_at(g) + 2 * lane);
      weights[static_cast<size_t>(o * shape.in + i)] =
          shape.bits == 8 ? static_cast<float>(byte - 128) * scale
                          : static_cast<float>(in_group % 8 < 4 ? byte & 15 : byte >> 4) * scale +
                                LoadF16(block + shape.minima_at(g) + 2 * lane);
    }
  }
  return weights;
}

}  // namespace espalier
