// Reads NumPy's .npy and .npz files, trusting nothing in them: sizes are checked before memory is
// taken, object arrays (pickles) are refused.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/tensor/shape.h"

namespace espalier {

// f2, f4, f8 -> f32; i1, i2, i4, u1, u2 -> i32; i8, u4, u8 -> i64 (u8 beyond 2^63 is an error);
// bool.
struct Array {
  TensorType type;
  std::vector<char> data;  // row-major
};

constexpr int64_t kMaxDatasetBytes = int64_t{16} << 30;

// InvalidArgument begins with `name` and says which field is wrong and what is accepted.
absl::StatusOr<Array> ParseNpy(absl::string_view bytes, const std::string& name);

// All members, by name without ".npy". Stored and deflated members, ZIP64 too; checksums are
// checked. `limit` bounds the bytes of all members together.
absl::StatusOr<std::map<std::string, Array>> ParseNpz(absl::string_view bytes,
                                                      int64_t limit = kMaxDatasetBytes);

}  // namespace espalier
