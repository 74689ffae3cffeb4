// Examples in memory: the columns of an .npz, or windows of a text.
#pragma once

#include <cstdint>
#include <memory>
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
  TensorType example;      // of one example: without dimension 0
  std::vector<char> data;  // all examples, row-major; empty for those of a text or an outline
  int shift = 0;           // of a text: targets are one byte ahead
  // Of an outline: as in ArraySummary.
  int64_t not_finite = -1;
  bool nan = false;
};

// Immutable, hence thread-safe. The last `holdout_fraction` of the examples is the held-out part.
class Dataset {
 public:
  // Every member is a column; all must have as many examples.
  static absl::StatusOr<std::shared_ptr<const Dataset>> FromNpz(absl::string_view bytes,
                                                                double holdout_fraction);
  // Columns that were made here, all with as many examples and with at least one.
  static absl::StatusOr<std::shared_ptr<const Dataset>> FromColumns(std::vector<Column> columns,
                                                                    double holdout_fraction);
  // Window i is bytes [i * S, i * S + S + 1): columns "tokens" and "targets", i32 [S].
  static absl::StatusOr<std::shared_ptr<const Dataset>> FromText(std::string bytes,
                                                                 int64_t sequence_length,
                                                                 double holdout_fraction);

  // As FromNpz and FromText make them, but without values, for whoever checks a file and does not
  // train on it: a few megabytes are held. Read must not be called.
  static absl::StatusOr<std::shared_ptr<const Dataset>> SummaryOfNpz(const ByteSource& file,
                                                                     double holdout_fraction);
  static absl::StatusOr<std::shared_ptr<const Dataset>> SummaryOfText(int64_t bytes,
                                                                      int64_t sequence_length,
                                                                      double holdout_fraction);

  int64_t examples() const { return examples_; }
  int64_t training_examples() const { return training_examples_; }
  int64_t holdout_examples() const { return examples_ - training_examples_; }
  const std::vector<Column>& columns() const { return columns_; }

  // NotFound lists the columns that are there.
  absl::StatusOr<const Column*> Find(const std::string& name) const;

  // Whether values of the column can be had as `as`: floats as any float, integers and bools as
  // integers or f32. InvalidArgument otherwise.
  static absl::Status CheckConversion(const Column& column, DType as);
  // InvalidArgument naming column, example and element if a float column holds NaN or infinity.
  absl::Status CheckFinite(const Column& column) const;

  // The box [start, start + size) of one example, row-major, as `as`. OutOfRange (naming column and
  // example) if an integer does not fit.
  absl::Status Read(const Column& column, int64_t example, const Dims& start, const Dims& size,
                    DType as, char* out) const;

 private:
  // Of the examples along dimension 0 of an array, as many as all columns have. Lives until the
  // next one is added.
  absl::StatusOr<Column*> AddColumn(const std::string& name, const TensorType& array);
  static absl::StatusOr<std::shared_ptr<Dataset>> TextOf(int64_t bytes, int64_t sequence_length,
                                                         double holdout_fraction);
  absl::Status SetParts(int64_t examples, double holdout_fraction);

  std::vector<Column> columns_;
  std::string text_;
  int64_t examples_ = 0;
  int64_t training_examples_ = 0;
};

}  // namespace espalier
