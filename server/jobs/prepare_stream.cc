#include "server/jobs/prepare_stream.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"

namespace espalier {
namespace {

constexpr int64_t kMaxBacklog = 1 << 20;
// Of the outline of given columns, which is held in memory while it is checked.
constexpr int64_t kMaxBatchBytes = int64_t{1} << 30;

absl::Status StreamField(const std::string& name, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("spec.", name, ": ", problem));
}

// Returns the bytes of a batch of a column, at most kMaxBatchBytes.
absl::StatusOr<int64_t> BytesOfBatch(const TensorType& example, int64_t batch) {
  if (example.dtype == DType::kInvalid) return absl::InvalidArgumentError("it has no element type");
  int64_t bytes =
      std::clamp<int64_t>(batch, 1, 1 << 20) * static_cast<int64_t>(SizeOf(example.dtype));
  for (const int64_t dim : example.dims) {
    if (dim <= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an example has the shape ", ToString(example.dims), "; dimensions are 1 or more"));
    }
    if (__builtin_mul_overflow(bytes, dim, &bytes)) bytes = kMaxBatchBytes + 1;
    if (bytes > kMaxBatchBytes) break;
  }
  if (bytes <= kMaxBatchBytes) return bytes;
  return absl::InvalidArgumentError(absl::StrCat("a batch of it has more than ", kMaxBatchBytes,
                                                 " bytes; use a smaller batch_size, or a dataset"));
}

IntegerRange ToRange(const v1::IntegerRanges::Range& range) {
  return {range.low(), range.high(),
          range.has_ignored() ? std::optional(range.ignored()) : std::nullopt};
}

bool Holds(const v1::IntegerRanges& ranges, const IntegerRange& wanted) {
  return std::any_of(ranges.ranges().begin(), ranges.ranges().end(),
                     [&](const auto& range) { return ToRange(range) == wanted; });
}

}  // namespace

absl::Status CheckStreamFields(const v1::TrainingSpec& spec) {
  const v1::Dataset& dataset = spec.dataset();
  const v1::ExampleStream& stream = dataset.stream();
  if (!dataset.uri().empty()) {
    return StreamField("dataset.uri", "a STREAM has none; its examples come by PushExamples");
  }
  if (spec.steps() <= 0) {
    return StreamField("steps, epochs",
                       "a STREAM needs steps, the most that are trained; it has no epochs");
  }
  if (dataset.holdout_fraction() != 0) {
    return StreamField("dataset.holdout_fraction",
                       "a STREAM cannot hold examples back, as its last ones are not known; give "
                       "validation.dataset");
  }
  if (dataset.shuffle()) {
    return StreamField(
        "dataset.shuffle",
        "the examples of a STREAM are trained in the order in which they come; shuffle "
        "them before they are pushed");
  }
  if (stream.backlog() < 0 || stream.backlog() > kMaxBacklog) {
    return StreamField(
        "dataset.stream.backlog",
        absl::StrCat("is ", stream.backlog(), "; accepted: 0 to ", kMaxBacklog, " batches"));
  }
  if (!(stream.timeout_seconds() >= 0) || std::isinf(stream.timeout_seconds())) {
    return StreamField("dataset.stream.timeout_seconds", "0 (wait for ever) or more seconds");
  }
  if (spec.validation().every_epochs() > 0) {
    return StreamField("validation.every_epochs", "a STREAM has no epochs; give every_steps");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Dataset>> OutlineOfColumns(
    const OpRegistry& registry, const v1::TrainingSpec& spec,
    const google::protobuf::Map<std::string, v1::TensorType>& columns) {
  std::map<std::string, TensorType> types;
  if (spec.model_case() == v1::TrainingSpec::kGraph) {
    absl::StatusOr<Graph> graph = FromProto(registry, spec.graph());
    if (!graph.ok()) return graph.status();
    const auto& names = spec.dataset().columns();
    for (const Value& value : graph->values()) {
      if (value.kind != ValueKind::kInput || value.type.dims.empty()) continue;
      const auto named = names.find(value.name);
      types[named == names.end() ? value.name : named->second] = {
          value.type.dtype, {value.type.dims.begin() + 1, value.type.dims.end()}};
    }
  }
  for (const auto& [name, type] : columns) {
    types[name] = {FromProto(type.dtype()), {type.dims().begin(), type.dims().end()}};
  }
  if (types.empty()) {
    return absl::InvalidArgumentError(
        "columns: without a dataset, say which columns the client's batches have");
  }
  std::vector<Column> outline;
  for (const auto& [name, type] : types) {
    const absl::StatusOr<int64_t> bytes = BytesOfBatch(type, spec.batch_size());
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("column '", name, "': ", bytes.status().message()));
    }
    Column column;
    column.name = name;
    column.example = type;
    column.data.resize(static_cast<size_t>(*bytes));
    outline.push_back(std::move(column));
  }
  return Dataset::FromColumns(std::move(outline), 0);
}

void SetStreamColumns(const OpRegistry& registry, const Graph& graph,
                      const std::map<std::string, std::string>& columns,
                      v1::ExampleStream* stream) {
  stream->clear_columns();
  stream->clear_ranges();
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kInput || value.example_weights) continue;
    v1::TensorType& type = (*stream->mutable_columns())[columns.at(value.name)];
    type.set_dtype(ToProto(value.type.dtype));
    type.mutable_dims()->Assign(value.type.dims.begin() + 1, value.type.dims.end());
  }
  for (const auto& [input, ranges] : IndexRanges(registry, graph)) {
    v1::IntegerRanges& of_column = (*stream->mutable_ranges())[columns.at(input)];
    for (const InputRange& range : ranges) {
      // A loss and its metric accept the same labels.
      if (Holds(of_column, range.range)) continue;
      v1::IntegerRanges::Range* added = of_column.add_ranges();
      added->set_low(range.range.low);
      added->set_high(range.range.high);
      if (range.range.ignored.has_value()) added->set_ignored(*range.range.ignored);
      added->set_reader(range.reader);
    }
  }
}

std::map<std::string, StreamColumn> StreamColumnsOf(const v1::ExampleStream& stream) {
  std::map<std::string, StreamColumn> columns;
  for (const auto& [name, type] : stream.columns()) {
    StreamColumn& column = columns[name];
    column.example = {FromProto(type.dtype()), {type.dims().begin(), type.dims().end()}};
    const auto ranges = stream.ranges().find(name);
    if (ranges == stream.ranges().end()) continue;
    for (const v1::IntegerRanges::Range& range : ranges->second.ranges()) {
      column.ranges.push_back({ToRange(range), range.reader()});
    }
  }
  return columns;
}

}  // namespace espalier
