// Reads NumPy's .npy and .npz files, trusting nothing in them: sizes are checked before memory is
// taken, object arrays (pickles) are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
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

// One without its values.
struct ArraySummary {
  TensorType type;
  int64_t not_finite = -1;  // row-major: a float that is NaN or infinite; -1: there is none
  bool nan = false;         // that one is NaN
};

// A file that is read piece by piece.
struct ByteSource {
  int64_t size = 0;
  // Bytes [at, at + n), which lie within the file.
  std::function<absl::Status(int64_t at, int64_t n, char* to)> read;
};

constexpr int64_t kMaxDatasetBytes = int64_t{16} << 30;

// InvalidArgument begins with `name` and says which field is wrong and what is accepted. `limit`
// bounds the bytes of the array.
absl::StatusOr<Array> ParseNpy(absl::string_view bytes, const std::string& name,
                               int64_t limit = kMaxDatasetBytes);

// All members, by name without ".npy". Stored and deflated members, ZIP64 too; checksums are
// checked. `limit` bounds the bytes of all members together, and those of all arrays.
absl::StatusOr<std::map<std::string, Array>> ParseNpz(absl::string_view bytes,
                                                      int64_t limit = kMaxDatasetBytes);

// What ParseNpz would make of the file, with its errors, for whoever only checks it: all of it is
// read, and never more than a few megabytes are held, however much it unpacks to.
absl::StatusOr<std::map<std::string, ArraySummary>> SummarizeNpz(const ByteSource& file,
                                                               int64_t limit = kMaxDatasetBytes);

}  // namespace espalier
