#include "server/jobs/pushed_examples.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/graph/graph_proto.h"
#include "server/jobs/check_columns.h"
#include "storage/dataset.h"
#include "storage/npz_writer.h"

namespace espalier {
namespace {

using StreamColumns = std::map<std::string, StreamColumn>;

std::string ColumnList(const StreamColumns& columns) {
  return absl::StrJoin(columns, ", ", [](std::string* out, const auto& column) {
    absl::StrAppend(out, "'", column.first, "'");
  });
}

absl::Status CheckColumnsOfStream(const Dataset& examples, const StreamColumns& wanted) {
  for (const Column& column : examples.columns()) {
    const StreamColumn& as = wanted.at(column.name);
    absl::Status status = CheckExamples(examples, column, as.example);
    if (status.ok()) status = CheckRanges(examples, column, as.ranges);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// The examples of one batch.
absl::StatusOr<std::shared_ptr<const Dataset>> BatchOf(const Dataset& examples, int64_t batch,
                                                       int64_t batch_size) {
  std::vector<Column> columns;
  for (const Column& all : examples.columns()) {
    Column& column = columns.emplace_back();
    column.name = all.name;
    column.example = all.example;
    const int64_t bytes = batch_size * all.example.bytes();
    const auto begin = all.data.begin() + batch * bytes;
    column.data.assign(begin, begin + bytes);
  }
  return Dataset::FromColumns(std::move(columns), 0);
}

// Checks the values as workers read them: that converts types.
absl::Status CheckValues(const std::map<std::string, ArrayPieces>& arrays,
                         const StreamColumns& wanted, const PushedBatches& batches,
                         int64_t batch_size) {
  std::vector<Column> columns;
  for (const auto& [name, array] : arrays) {
    Array read = AsRead(array);
    Column& column = columns.emplace_back();
    column.name = name;
    column.example = {read.type.dtype, {read.type.dims.begin() + 1, read.type.dims.end()}};
    column.data = std::move(read.data);
  }
  const absl::StatusOr<std::shared_ptr<const Dataset>> examples =
      Dataset::FromColumns(std::move(columns), 0);
  if (!examples.ok()) return examples.status();
  const absl::Status all = CheckColumnsOfStream(**examples, wanted);
  // The client knows its batches, but not which of them came in one call.
  for (int64_t i = 0; !all.ok() && i < batches.steps; ++i) {
    const auto batch = BatchOf(**examples, i, batch_size);
    const absl::Status status = batch.ok() ? CheckColumnsOfStream(**batch, wanted) : batch.status();
    if (status.ok()) continue;
    return absl::Status(status.code(), absl::StrCat("batch of step ", batches.first_step + i, ": ",
                                                    status.message()));
  }
  return all;
}

}  // namespace

absl::Status PushedExamples::Add(v1::PushExamplesRequest message) {
  if (messages_++ == 0) {
    first_step_ = message.first_step();
  } else if (message.first_step() != 0 && message.first_step() != first_step_) {
    return absl::InvalidArgumentError("first_step: it stands in the first message of a call");
  }
  if (end_) return absl::InvalidArgumentError("end: it stands in the last message of a call");
  end_ = message.end();
  if (message.columns().empty()) return absl::OkStatus();
  int64_t examples = -1;
  for (auto& [name, value] : *message.mutable_columns()) {
    const std::string column = absl::StrCat("column '", name, "': ");
    const DType dtype = FromProto(value.dtype());
    if (dtype == DType::kInvalid || dtype == DType::kBF16) {
      return absl::InvalidArgumentError(
          absl::StrCat(column, "its element type is ", v1::DataType_Name(value.dtype()),
                       "; accepted: F32, F16, I8, U8, I32, I64, BOOL"));
    }
    int64_t bytes = static_cast<int64_t>(SizeOf(dtype));
    for (const int64_t dim : value.dims()) {
      if (dim > 0 && !__builtin_mul_overflow(bytes, dim, &bytes) && bytes <= kMaxBytes) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(column, "dimensions ", absl::StrJoin(value.dims(), ", "),
                       "; accepted: 1 or more, the first one counts the examples, and at most ",
                       kMaxBytes, " bytes in a call"));
    }
    if (value.dims().empty() || static_cast<int64_t>(value.data().size()) != bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(column, "it has ", value.data().size(), " bytes; dimensions ",
                       absl::StrJoin(value.dims(), ", "), " of ", Name(dtype), " take ", bytes));
    }
    if (examples < 0) examples = value.dims(0);
    if (value.dims(0) != examples) {
      return absl::InvalidArgumentError(absl::StrCat(column, "it has ", value.dims(0),
                                                     " examples, another column has ", examples));
    }
    bytes_ += bytes;
    if (bytes_ > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a call brings at most ", kMaxBytes, " bytes; use several calls, or smaller batches"));
    }
    const TensorType example{dtype, {value.dims().begin() + 1, value.dims().end()}};
    const auto [given, is_new] = columns_.try_emplace(name, Given{example, {}});
    if (is_new && examples_ > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(column, "an earlier message of the call lacks it"));
    }
    if (given->second.example != example) {
      return absl::InvalidArgumentError(absl::StrCat(column, "an example is ", ToString(example),
                                                     ", in an earlier message ",
                                                     ToString(given->second.example)));
    }
    given->second.pieces.push_back(std::move(*value.mutable_data()));
  }
  if (message.columns().size() != columns_.size()) {
    return absl::InvalidArgumentError(
        "a message lacks columns that an earlier one of its call has");
  }
  examples_ += examples;
  return absl::OkStatus();
}

absl::StatusOr<PushedBatches> PushedExamples::Take(
    const std::map<std::string, StreamColumn>& columns, int64_t batch_size) {
  PushedBatches batches;
  batches.first_step = first_step_;
  batches.end = end_;
  if (columns_.empty()) return batches;
  if (examples_ % batch_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(examples_, " examples do not fill batches of ", batch_size,
                     "; leave an incomplete last batch out, or fill it"));
  }
  batches.steps = examples_ / batch_size;
  for (const auto& [name, column] : columns) {
    if (columns_.contains(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("column '", name, "' is missing; the job wants ", ColumnList(columns)));
  }
  std::map<std::string, ArrayPieces> arrays;
  for (const auto& [name, given] : columns_) {
    if (!columns.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "column '", name, "': the job has no such column; it has ", ColumnList(columns)));
    }
    Dims dims = given.example.dims;
    dims.insert(dims.begin(), examples_);
    arrays[name] = {{given.example.dtype, std::move(dims)},
                    {given.pieces.begin(), given.pieces.end()}};
  }
  if (absl::Status s = CheckValues(arrays, columns, batches, batch_size); !s.ok()) return s;
  absl::StatusOr<std::string> npz = WriteNpz(arrays);
  if (!npz.ok()) return npz.status();
  batches.npz = *std::move(npz);
  return batches;
}

}  // namespace espalier
