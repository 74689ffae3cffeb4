// In-memory datasets: the columns of an .npz, or windows of a text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/tensor/shape.h"
#include "storage/npz.h"

namespace espalier {

struct Column {
  std::string name;
  TensorType example;      // type of one example: without dimension 0
  std::vector<char> data;  // all examples, row-major; empty for a text or a summary
  int shift = 0;           // text only: targets are one byte ahead
  // Summary only: as in ArraySummary.
  int64_t not_finite = -1;
  bool nan = false;
  IntegerExtremes extremes;
};

// The integers that a column may hold.
struct IntegerRange {
  int64_t low = 0, high = 0;       // low <= value <= high
  std::optional<int64_t> ignored;  // may be there, too
  bool operator==(const IntegerRange&) const = default;
};

// Immutable and thread-safe. The last `holdout_fraction` of the examples is held out; 1: all.
class Dataset {
 public:
  // Every member is a column; all must have equally many examples. An .npy has one column,
  // `npy_column`.
  static absl::StatusOr<std::shared_ptr<const Dataset>> FromNpz(
      absl::string_view bytes, double holdout_fraction, const std::string& npy_column = "array");
  // From columns in memory, with equally many examples, at least one.
  static absl::StatusOr<std::shared_ptr<const Dataset>> FromColumns(std::vector<Column> columns,
                                                                    double holdout_fraction);
  // Window i is bytes [i * S, i * S + S + 1): columns "tokens" and "targets", i32 [S].
  static absl::StatusOr<std::shared_ptr<const Dataset>> FromText(std::string bytes,
                                                                 int64_t sequence_length,
                                                                 double holdout_fraction);

  // Like FromNpz and FromText without values, to check a file without training on it; holds a few
  // megabytes. Read must not be called.
  static absl::StatusOr<std::shared_ptr<const Dataset>> SummaryOfNpz(
      const ByteSource& file, double holdout_fraction, const std::string& npy_column = "array");
  static absl::StatusOr<std::shared_ptr<const Dataset>> SummaryOfText(int64_t bytes,
                                                                      int64_t sequence_length,
                                                                      double holdout_fraction);

  // The column of an .npy: the file's name without folder and extension.
  static std::string NpyColumn(const std::string& file);

  int64_t examples() const { return examples_; }
  int64_t training_examples() const { return training_examples_; }
  int64_t holdout_examples() const { return examples_ - training_examples_; }
  const std::vector<Column>& columns() const { return columns_; }

  // Returns NotFound listing the columns.
  absl::StatusOr<const Column*> Find(const std::string& name) const;

  // Checks that the column converts to `as`: f32 to any float type, i32, i64 and bools to integers
  // and floats, every type to itself. Returns InvalidArgument otherwise.
  static absl::Status CheckConversion(const Column& column, DType as);
  // Returns InvalidArgument naming column, example and element if a float column holds NaN or
  // infinity.
  absl::Status CheckFinite(const Column& column) const;
  // Returns InvalidArgument naming column, example and element if an integer column holds a value
  // out of range. A text is not looked at.
  absl::Status CheckRange(const Column& column, const IntegerRange& range) const;

  // Reads the box [start, start + size) of one example, row-major, as type `as`. Returns OutOfRange
  // naming column and example if an integer does not fit.
  absl::Status Read(const Column& column, int64_t example, const Dims& start, const Dims& size,
                    DType as, char* out) const;

 private:
  // Adds a column for an array with examples along dimension 0, as many as the others have. The
  // pointer is valid until the next call.
  absl::StatusOr<Column*> AddColumn(const std::string& name, const TensorType& array);
  static absl::StatusOr<std::shared_ptr<Dataset>> MakeText(int64_t bytes, int64_t sequence_length,
                                                           double holdout_fraction);
  absl::Status SetParts(int64_t examples, double holdout_fraction);

  std::vector<Column> columns_;
  std::string text_;
  int64_t examples_ = 0;
  int64_t training_examples_ = 0;
};

}  // namespace espalier
