#include "storage/dataset.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "ops/cpu/dtype/convert.h"
#include "storage/npz.h"

namespace espalier {
namespace {

int64_t IntegerAt(DType dtype, const char* data, int64_t i) {
  if (dtype == DType::kI64) {
    int64_t v;
    std::memcpy(&v, data + 8 * i, 8);
    return v;
  }
  if (dtype == DType::kI32) {
    int32_t v;
    std::memcpy(&v, data + 4 * i, 4);
    return v;
  }
  return data[i] != 0;
}

float FloatAt(const char* data, int64_t i) {
  float v;
  std::memcpy(&v, data + 4 * i, 4);
  return v;
}

// Returns false if `value` does not fit.
bool Store(double float_value, int64_t value, bool is_float, DType as, char* out) {
  switch (as) {
    case DType::kF32: {
      const float f = is_float ? static_cast<float>(float_value) : static_cast<float>(value);
      std::memcpy(out, &f, 4);
      return true;
    }
    case DType::kBF16:
    case DType::kF16: {
      const float f = is_float ? static_cast<float>(float_value) : static_cast<float>(value);
      const uint16_t h = as == DType::kF16 ? F32ToF16(f) : F32ToBF16(f);
      std::memcpy(out, &h, 2);
      return true;
    }
    case DType::kI32: {
      const int32_t v = static_cast<int32_t>(value);
      std::memcpy(out, &v, 4);
      return v == value;
    }
    case DType::kI64:
      std::memcpy(out, &value, 8);
      return true;
    case DType::kBool:
      *out = value != 0;
      return value == 0 || value == 1;
    case DType::kI8:
      *out = static_cast<char>(value);
      return value >= -128 && value <= 127;
    case DType::kU8:
      *out = static_cast<char>(value);
      return value >= 0 && value <= 255;
    case DType::kInvalid:
      break;
  }
  return false;
}

}  // namespace

absl::Status Dataset::SetParts(int64_t examples, double holdout_fraction) {
  if (!(holdout_fraction >= 0 && holdout_fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dataset.holdout_fraction is ", holdout_fraction, "; accepted: [0, 1]"));
  }
  examples_ = examples;
  training_examples_ =
      examples - static_cast<int64_t>(std::floor(static_cast<double>(examples) * holdout_fraction));
  return absl::OkStatus();
}

std::string Dataset::NpyColumn(const std::string& file) {
  return std::filesystem::path(file).stem().string();
}

absl::StatusOr<std::shared_ptr<const Dataset>> Dataset::FromNpz(absl::string_view bytes,
                                                                double holdout_fraction,
                                                                const std::string& npy_column) {
  absl::StatusOr<std::map<std::string, Array>> arrays =
      ParseNpz(bytes, kMaxDatasetBytes, npy_column);
  if (!arrays.ok()) return arrays.status();
  auto dataset = std::make_shared<Dataset>();
  for (auto& [name, array] : *arrays) {
    absl::StatusOr<Column*> column = dataset->AddColumn(name, array.type);
    if (!column.ok()) return column.status();
    (*column)->data = std::move(array.data);
  }
  if (absl::Status s = dataset->SetParts(dataset->examples_, holdout_fraction); !s.ok()) return s;
  return dataset;
}

absl::StatusOr<std::shared_ptr<const Dataset>> Dataset::SummaryOfNpz(
    const ByteSource& file, double holdout_fraction, const std::string& npy_column) {
  const absl::StatusOr<std::map<std::string, ArraySummary>> arrays =
      SummarizeNpz(file, kMaxDatasetBytes, npy_column);
  if (!arrays.ok()) return arrays.status();
  auto dataset = std::make_shared<Dataset>();
  for (const auto& [name, array] : *arrays) {
    absl::StatusOr<Column*> column = dataset->AddColumn(name, array.type);
    if (!column.ok()) return column.status();
    (*column)->not_finite = array.not_finite;
    (*column)->nan = array.nan;
    (*column)->extremes = array.extremes;
  }
  if (absl::Status s = dataset->SetParts(dataset->examples_, holdout_fraction); !s.ok()) return s;
  return dataset;
}

absl::StatusOr<Column*> Dataset::AddColumn(const std::string& name, const TensorType& array) {
  if (array.dims.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "npz: column '", name, "' is a scalar; dimension 0 of a column is the example"));
  }
  const int64_t count = array.dims[0];
  if (count == 0) return absl::InvalidArgumentError("npz: its columns have no examples");
  if (!columns_.empty() && count != examples_) {
    return absl::InvalidArgumentError(absl::StrCat("npz: column '", name, "' has ", count,
                                                   " examples, column '", columns_[0].name,
                                                   "' has ", examples_));
  }
  examples_ = count;
  Column column;
  column.name = name;
  column.example = {array.dtype, Dims(array.dims.begin() + 1, array.dims.end())};
  columns_.push_back(std::move(column));
  return &columns_.back();
}

absl::StatusOr<std::shared_ptr<const Dataset>> Dataset::FromColumns(std::vector<Column> columns,
                                                                    double holdout_fraction) {
  int64_t examples = 0;
  for (const Column& column : columns) {
    const int64_t bytes = static_cast<int64_t>(column.data.size());
    const int64_t each = column.example.bytes();
    const bool whole = each > 0 && bytes > 0 && bytes % each == 0;
    if (&column == &columns[0] && whole) examples = bytes / each;
    if (!whole || bytes / each != examples) {
      return absl::InvalidArgumentError(
          absl::StrCat("column '", column.name, "' has ", bytes, " bytes; expected those of ",
                       examples, " examples, as in the first column, of ", each));
    }
  }
  auto dataset = std::make_shared<Dataset>();
  if (examples == 0) return absl::InvalidArgumentError("a dataset needs a column with examples");
  dataset->columns_ = std::move(columns);
  if (absl::Status s = dataset->SetParts(examples, holdout_fraction); !s.ok()) return s;
  return dataset;
}

absl::StatusOr<std::shared_ptr<const Dataset>> Dataset::FromText(std::string bytes,
                                                                 int64_t sequence_length,
                                                                 double holdout_fraction) {
  absl::StatusOr<std::shared_ptr<Dataset>> dataset =
      MakeText(static_cast<int64_t>(bytes.size()), sequence_length, holdout_fraction);
  if (!dataset.ok()) return dataset.status();
  (*dataset)->text_ = std::move(bytes);
  return *std::move(dataset);
}

absl::StatusOr<std::shared_ptr<const Dataset>> Dataset::SummaryOfText(int64_t bytes,
                                                                      int64_t sequence_length,
                                                                      double holdout_fraction) {
  absl::StatusOr<std::shared_ptr<Dataset>> dataset =
      MakeText(bytes, sequence_length, holdout_fraction);
  if (!dataset.ok()) return dataset.status();
  return *std::move(dataset);
}

absl::StatusOr<std::shared_ptr<Dataset>> Dataset::MakeText(int64_t size, int64_t sequence_length,
                                                           double holdout_fraction) {
  if (sequence_length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("dataset.sequence_length is ", sequence_length, "; a text needs 1 or more"));
  }
  if (size <= sequence_length) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", size, " bytes; one example of sequence length ",
                     sequence_length, " takes ", sequence_length, " and one more"));
  }
  auto dataset = std::make_shared<Dataset>();
  for (int shift : {0, 1}) {
    Column column;
    column.name = shift == 0 ? "tokens" : "targets";
    column.example = {DType::kI32, {sequence_length}};
    column.shift = shift;
    dataset->columns_.push_back(std::move(column));
  }
  absl::Status parts = dataset->SetParts((size - 1) / sequence_length, holdout_fraction);
  if (!parts.ok()) return parts;
  return dataset;
}

absl::StatusOr<const Column*> Dataset::Find(const std::string& name) const {
  std::vector<std::string> names;
  for (const Column& column : columns_) {
    if (column.name == name) return &column;
    names.push_back(column.name);
  }
  const std::string near = Nearest(name, names);
  return absl::NotFoundError(
      absl::StrCat("the dataset has no column '", name, "'; it has '", absl::StrJoin(names, "', '"),
                   "'", near.empty() ? "" : " (did you mean '", near, near.empty() ? "" : "'?)"));
}

absl::Status Dataset::CheckConversion(const Column& column, DType as) {
  const DType from = column.example.dtype;
  const bool fits = IsFloat(from) ? IsFloat(as) : as != DType::kInvalid;
  // What an .npz has is widened to these; Read knows no others.
  const bool is_read = from == as || from == DType::kF32 || from == DType::kI32 ||
                       from == DType::kI64 || from == DType::kBool;
  if (fits && is_read) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("column '", column.name, "' holds ", Name(from), ", the model wants ", Name(as),
                   fits ? "; give it as that, or as f32 or i32" : ""));
}

absl::Status Dataset::CheckFinite(const Column& column) const {
  if (column.example.dtype != DType::kF32) return absl::OkStatus();
  int64_t found = column.not_finite;
  bool nan = column.nan;
  const int64_t total = static_cast<int64_t>(column.data.size()) / 4;
  for (int64_t i = 0; i < total && found < 0; ++i) {
    const float value = FloatAt(column.data.data(), i);
    if (std::isfinite(value)) continue;
    found = i;
    nan = std::isnan(value);
  }
  if (found < 0) return absl::OkStatus();
  const int64_t each = column.example.num_elements();
  return absl::InvalidArgumentError(
      absl::StrCat("column '", column.name, "': example ", found / each, ", element ", found % each,
                   " is ", nan ? "NaN" : "infinite", "; every value must be a finite f32"));
}

absl::Status Dataset::CheckRange(const Column& column, const IntegerRange& range) const {
  const DType dtype = column.example.dtype;
  if (dtype != DType::kI32 && dtype != DType::kI64) return absl::OkStatus();
  IntegerExtremes extremes = column.extremes;
  const int64_t total = static_cast<int64_t>(column.data.size() / SizeOf(dtype));
  for (int64_t i = 0; i < total; ++i) extremes.Add(IntegerAt(dtype, column.data.data(), i), i);
  const auto found = extremes.Outside(range.low, range.high, range.ignored);
  if (!found.has_value()) return absl::OkStatus();
  const int64_t each = column.example.num_elements();
  const std::string element = each == 1 ? "" : absl::StrCat(", element ", found->index % each);
  const std::string ignored =
      range.ignored.has_value() ? absl::StrCat(", and ", *range.ignored, ", which is ignored") : "";
  return absl::InvalidArgumentError(
      absl::StrCat("column '", column.name, "': example ", found->index / each, element, " is ",
                   found->value, "; accepted are ", range.low, " to ", range.high, ignored));
}

absl::Status Dataset::Read(const Column& column, int64_t example, const Dims& start,
                           const Dims& size, DType as, char* out) const {
  const Dims& dims = column.example.dims;
  const DType dtype = column.example.dtype;
  const int rank = static_cast<int>(dims.size());
  const int64_t width = static_cast<int64_t>(SizeOf(as));
  if (!text_.empty()) {
    const char* from = text_.data() + example * dims[0] + start[0] + column.shift;
    for (int64_t i = 0; i < size[0]; ++i) {
      Store(0, static_cast<unsigned char>(from[i]), false, as, out + i * width);
    }
    return absl::OkStatus();
  }
  const int64_t each = column.example.num_elements();
  const int64_t stored = static_cast<int64_t>(SizeOf(dtype));
  const char* base = column.data.data() + example * each * stored;
  const int64_t row = rank == 0 ? 1 : size[rank - 1];
  const int64_t rows = row == 0 ? 0 : NumElements(size) / row;
  Dims index(rank, 0);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t at = 0;
    for (int d = 0; d < rank; ++d) at = at * dims[d] + start[d] + index[d];
    if (as == dtype) {
      std::memcpy(out, base + at * stored, static_cast<size_t>(row * stored));
    } else {
      for (int64_t i = 0; i < row; ++i) {
        const bool is_float = dtype == DType::kF32;
        const int64_t integer = is_float ? 0 : IntegerAt(dtype, base, at + i);
        if (!Store(is_float ? FloatAt(base, at + i) : 0, integer, is_float, as, out + i * width)) {
          return absl::OutOfRangeError(absl::StrCat("column '", column.name, "', example ", example,
                                                    ": ", integer, " does not fit ", Name(as)));
        }
      }
    }
    out += row * width;
    for (int d = rank - 2; d >= 0 && ++index[d] == size[d]; --d) index[d] = 0;
  }
  return absl::OkStatus();
}

}  // namespace espalier
