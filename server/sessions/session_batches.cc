#include "server/sessions/session_batches.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/graph/graph_proto.h"
#include "server/jobs/check_columns.h"
#include "storage/dataset.h"

namespace espalier {
namespace {

constexpr int64_t kColumnBytesPerMessage = 32 << 20;

// Checks values as workers will read them.
absl::Status CheckColumn(const WholeTensor& tensor, const TensorType& wanted,
                         const std::vector<InputRange>& ranges) {
  Column column;
  column.name = tensor.name;
  column.example = {tensor.type.dtype, {tensor.type.dims.begin() + 1, tensor.type.dims.end()}};
  column.data.assign(tensor.data.begin(), tensor.data.end());
  std::vector<Column> columns;
  columns.push_back(std::move(column));
  absl::StatusOr<std::shared_ptr<const Dataset>> examples =
      Dataset::FromColumns(std::move(columns), 0);
  if (!examples.ok()) return examples.status();
  const Column& read = (*examples)->columns()[0];
  absl::Status status = CheckExamples(**examples, read, wanted);
  return status.ok() ? CheckRanges(**examples, read, ranges) : status;
}

absl::StatusOr<ChosenExamples> ChooseGiven(const PreparedSession& session,
                                           std::vector<WholeTensor> tensors,
                                           const std::set<std::string>* needed) {
  ChosenExamples chosen;
  chosen.source = ChosenExamples::Source::kGiven;
  std::set<std::string> missing;
  for (const auto& [name, type] : session.columns) {
    if (needed == nullptr || needed->contains(name)) missing.insert(name);
  }
  for (WholeTensor& tensor : tensors) {
    const auto wanted = session.columns.find(tensor.name);
    if (tensor.kind != v1::SESSION_TENSOR_KIND_UNSPECIFIED || wanted == session.columns.end()) {
      std::vector<std::string> names;
      for (const auto& [name, type] : session.columns) names.push_back(name);
      return absl::InvalidArgumentError(absl::StrCat("the batch has no column '", tensor.name,
                                                     "'; it has ", absl::StrJoin(names, ", ")));
    }
    const int64_t examples = tensor.type.dims.empty() ? 0 : tensor.type.dims[0];
    if (examples == 0 || (chosen.examples > 0 && examples != chosen.examples)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "column '", tensor.name, "' is ", ToString(tensor.type),
          "; dimension 0 counts the examples", chosen.examples > 0 ? ", which are " : "",
          chosen.examples > 0 ? absl::StrCat(chosen.examples) : ""));
    }
    chosen.examples = examples;
    const auto ranges = session.ranges.find(tensor.name);
    absl::Status status =
        CheckColumn(tensor, wanted->second,
                    ranges == session.ranges.end() ? std::vector<InputRange>() : ranges->second);
    if (!status.ok()) return status;
    missing.erase(tensor.name);
    chosen.columns.push_back(std::move(tensor));
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch lacks column '", absl::StrJoin(missing, "', '"), "'"));
  }
  if (chosen.columns.empty()) {
    return absl::InvalidArgumentError("the batch has no columns; give at least one");
  }
  return chosen;
}

}  // namespace

absl::StatusOr<ChosenExamples> ChooseExamples(const PreparedSession& session,
                                              const v1::SessionBatch& batch,
                                              std::vector<WholeTensor> tensors,
                                              const std::set<std::string>* needed) {
  if (batch.source_case() == v1::SessionBatch::kGiven) {
    return ChooseGiven(session, std::move(tensors), needed);
  }
  if (batch.source_case() == v1::SessionBatch::SOURCE_NOT_SET) {
    return absl::InvalidArgumentError("batch: say where its examples come from");
  }
  if (!tensors.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", tensors[0].name, "' came with a batch that is not `given`"));
  }
  if (session.examples == 0) {
    return absl::FailedPreconditionError(
        "batch: the session was opened without a dataset; give the examples");
  }
  ChosenExamples chosen;
  switch (batch.source_case()) {
    case v1::SessionBatch::kRows:
      chosen.source = ChosenExamples::Source::kRows;
      chosen.rows.assign(batch.rows().values().begin(), batch.rows().values().end());
      chosen.examples = static_cast<int64_t>(chosen.rows.size());
      for (const int64_t row : chosen.rows) {
        if (row >= 0 && row < session.examples) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "batch.rows: ", row, "; the dataset has rows 0 to ", session.examples - 1));
      }
      break;
    case v1::SessionBatch::kHeldOut:
      chosen.source = ChosenExamples::Source::kHeldOut;
      chosen.examples = session.examples - session.training_examples;
      if (chosen.examples == 0) {
        return absl::FailedPreconditionError(
            "batch.held_out: the dataset has no held-out part; open the session with "
            "dataset.holdout_fraction");
      }
      break;
    default:
      break;
  }
  if (chosen.examples == 0 && chosen.source != ChosenExamples::Source::kNext) {
    return absl::InvalidArgumentError("batch.rows: it is empty");
  }
  return chosen;
}

void FillBatches(int64_t batch_size, ChosenExamples* examples) {
  const int64_t more = (batch_size - examples->examples % batch_size) % batch_size;
  for (int64_t i = 0; i < more; ++i) {
    if (!examples->rows.empty()) examples->rows.push_back(examples->rows[0]);
    for (WholeTensor& column : examples->columns) {
      const auto bytes = static_cast<size_t>(column.type.bytes() / column.type.dims[0]);
      column.data.append(column.data.substr(0, bytes));
    }
  }
  examples->examples += more;
  for (WholeTensor& column : examples->columns) column.type.dims[0] = examples->examples;
}

std::vector<v1::RankCommand> WithExamples(v1::RankCommand command, ChosenExamples examples,
                                          int64_t next) {
  std::vector<v1::RankCommand> messages;
  switch (examples.source) {
    case ChosenExamples::Source::kNext:
      command.set_own_order(next);
      break;
    case ChosenExamples::Source::kHeldOut:
      command.set_held_out(true);
      break;
    case ChosenExamples::Source::kRows:
      command.mutable_rows()->mutable_values()->Add(examples.rows.begin(), examples.rows.end());
      break;
    case ChosenExamples::Source::kGiven: {
      command.set_given(true);
      int64_t bytes = 0;
      v1::RankCommand message;
      SplitIntoParts(std::move(examples.columns), [&](v1::TensorPart part) {
        bytes += static_cast<int64_t>(part.data().size());
        if (bytes > kColumnBytesPerMessage) {
          messages.push_back(std::exchange(message, v1::RankCommand()));
          bytes = static_cast<int64_t>(part.data().size());
        }
        *message.add_columns() = std::move(part);
        return absl::OkStatus();
      }).IgnoreError();
      *command.mutable_columns() = std::move(*message.mutable_columns());
      break;
    }
  }
  messages.push_back(std::move(command));
  return messages;
}

}  // namespace espalier
