// Weight matrices in 8 and 4 bits, and in f16 (see ops/kernel/packed_weights.h for how they lie in
// memory).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {

// Rounds a matrix f32[out, in] to nearest. 8 bits: symmetric, the largest magnitude of a group is
// 127 steps. 4 bits: the 16 values between the least and the largest of a group, or those that its
// numbers are already if they are 16 at most and equally far apart. `packed` takes blocks() *
// block_bytes() bytes. InvalidArgument with the row and column, and `name`, for a weight that is
// not finite or too large for a scale of f16.
absl::Status Pack(absl::string_view name, const PackedWeights& shape, const float* weights,
                  uint8_t* packed);

// InvalidArgument with the number, and `name`, if one of `count` weights is finite and would be an
// infinity in f16.
absl::Status ExpectF16(absl::string_view name, const float* weights, int64_t count);

// f32[out, in] that the packed numbers stand for.
std::vector<float> Unpack(const PackedWeights& shape, const uint8_t* packed);

}  // namespace espalier
