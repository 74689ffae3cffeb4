// Quantizes weight matrices to 8 and 4 bits, and converts to f16. ops/kernel/packed_weights.h
// defines the layout.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {

// Quantizes a matrix f32[out, in], rounding to nearest. 8 bits: symmetric, the largest magnitude of
// a group is 127 steps. 4 bits: 16 equidistant values from the minimum to the maximum of a group;
// if a group has at most 16 equidistant values already, exactly those. `packed` takes blocks() *
// block_bytes() bytes. Returns InvalidArgument with `name`, row and column for a weight that is not
// finite or too large for an f16 scale.
absl::Status Pack(absl::string_view name, const PackedWeights& shape, const float* weights,
                  uint8_t* packed);

// GGML's Q8_0: an f16 scale and 32 signed numbers that it multiplies.
inline constexpr int64_t kQ8BlockBytes = 34;

// Packs a matrix of Q8_0 blocks [out, in / 32] to 8 bits: only rearranges it, so that every number
// and scale stays as it is. REQUIRES: shape.bits is 8, and shape.in a multiple of 32. Returns
// InvalidArgument with `name`, row (the first one is number `first_row`) and column for a scale
// that is not finite.
absl::Status PackQ8Blocks(absl::string_view name, const PackedWeights& shape, const uint8_t* blocks,
                          uint8_t* packed, int64_t first_row = 0);

// Returns InvalidArgument with `name` and the number if one of `count` weights is finite but would
// overflow f16.
absl::Status ExpectF16(absl::string_view name, const float* weights, int64_t count);

// Dequantizes to f32[out, in].
std::vector<float> Unpack(const PackedWeights& shape, const uint8_t* packed);

}  // namespace espalier
