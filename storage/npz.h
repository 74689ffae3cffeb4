// Reads NumPy's .npy and .npz files. Files are not trusted: sizes are checked before memory is
// allocated, and object arrays (pickles) are rejected.
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
#include "storage/integer_extremes.h"

namespace espalier {

// f2, f4, f8 -> f32; i1, i2, i4, u1, u2 -> i32; i8, u4, u8 -> i64 (u8 beyond 2^63 is an error);
// bool.
struct Array {
  TensorType type;
  std::vector<char> data;  // row-major
};

// An array whose values, row-major, are those of the pieces one after another, each of whole
// elements.
struct ArrayPieces {
  TensorType type;
  std::vector<absl::string_view> pieces;
};

// Returns the array as it is read from an .npy: f16 and small integers widened as above. REQUIRES:
// one of the types above.
Array AsRead(const ArrayPieces& array);

// An array without its values.
struct ArraySummary {
  TensorType type;
  int64_t not_finite = -1;   // row-major index of the first NaN or infinity; -1: none
  bool nan = false;          // true if that is a NaN
  IntegerExtremes extremes;  // of i32 and i64, with row-major indices
};

// A file that is read in pieces.
struct ByteSource {
  int64_t size = 0;
  // Reads bytes [at, at + n). REQUIRES: they are within the file.
  std::function<absl::Status(int64_t at, int64_t n, char* to)> read;
};

constexpr int64_t kMaxDatasetBytes = int64_t{16} << 30;

// Returns InvalidArgument, starting with `name`, with the invalid field and what is accepted.
// `limit` bounds the array's bytes.
absl::StatusOr<Array> ParseNpy(absl::string_view bytes, const std::string& name,
                               int64_t limit = kMaxDatasetBytes);

// Returns all members by name without ".npy". Reads stored and deflated members and ZIP64, and
// verifies checksums. `limit` bounds the bytes of all members together, and of all arrays. A file
// that is an .npy itself gives one array, `npy_name`.
absl::StatusOr<std::map<std::string, Array>> ParseNpz(absl::string_view bytes,
                                                      int64_t limit = kMaxDatasetBytes,
                                                      const std::string& npy_name = "array");

// Like ParseNpz, with the same errors, without keeping values: reads the whole file but holds only
// a few megabytes, however large it inflates.
absl::StatusOr<std::map<std::string, ArraySummary>> SummarizeNpz(
    const ByteSource& file, int64_t limit = kMaxDatasetBytes,
    const std::string& npy_name = "array");

}  // namespace espalier
