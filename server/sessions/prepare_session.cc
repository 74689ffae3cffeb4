#include "server/sessions/prepare_session.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "server/jobs/prepare_stream.h"
#include "server/jobs/training_dataset.h"
#include "storage/example_weights.h"

namespace espalier {
namespace {

// What a job would take for a schedule that does not end.
constexpr int64_t kEndless = int64_t{1} << 40;

absl::Status Field(const std::string& name, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("spec.", name, ": ", problem));
}

absl::Status CheckFields(const v1::TrainingSpec& spec) {
  if (spec.epochs() != 0 || spec.steps() != 0 || spec.checkpoint_every_steps() != 0) {
    return Field("epochs, steps, checkpoint_every_steps",
                 "a session has none; its client trains as long as it likes");
  }
  if (!spec.output_model().empty()) {
    return Field("output_model", "a session has none; SaveCheckpoint names its models");
  }
  if (spec.has_validation() || spec.has_early_stopping()) {
    return Field("validation, early_stopping",
                 "a session has none; Evaluate takes other examples, and its client decides when "
                 "to stop");
  }
  if (spec.has_record()) {
    return Field("record", "a session has none; SaveCheckpoint writes its checkpoints");
  }
  const v1::LearningRateSchedule& rate = spec.optimizer().learning_rate();
  const bool ends = rate.kind() != v1::LearningRateSchedule::CONSTANT &&
                    rate.kind() != v1::LearningRateSchedule::STEP &&
                    rate.kind() != v1::LearningRateSchedule::TABLE;
  if (ends && rate.total_steps() <= 0) {
    return Field("optimizer.learning_rate.total_steps",
                 "a session has no number of steps of its own; this schedule needs one");
  }
  return absl::OkStatus();
}

// As in the plan's structure (planner/pcg/structure.cc). Reports are sums over the workers, which
// have no whole tensor.
bool IsReported(const OpRegistry& registry, const Graph& graph, const std::string& name,
                ValueId value) {
  if (name == "loss") return true;
  const Value& output = graph.value(value);
  if (output.producer == kNoNode || output.producer_output != 0) return false;
  const OpDef* producer = registry.Find(graph.node(output.producer).op);
  return producer->is_metric || (producer->is_loss && output.type.dims.empty());
}

// The columns that `value` depends on, by way of `graph`'s nodes.
std::set<std::string> ColumnsOf(const Graph& graph, ValueId value,
                                const std::map<std::string, std::string>& columns) {
  std::set<std::string> needed;
  std::set<ValueId> seen = {value};
  std::vector<ValueId> open = {value};
  while (!open.empty()) {
    const Value& v = graph.value(open.back());
    open.pop_back();
    if (v.kind == ValueKind::kInput && !v.example_weights) needed.insert(columns.at(v.name));
    if (v.producer == kNoNode) continue;
    for (const ValueId input : graph.node(v.producer).inputs) {
      if (input != kNoValue && seen.insert(input).second) open.push_back(input);
    }
  }
  return needed;
}

}  // namespace

absl::StatusOr<PreparedSession> PrepareSession(const OpRegistry& registry, ArtifactStore* artifacts,
                                               const DatasetRoots& roots,
                                               const v1::OpenSessionRequest& request,
                                               const std::string& owner) {
  if (absl::Status s = CheckFields(request.spec()); !s.ok()) return s;
  const v1::SessionProgress& begin = request.begin();
  if (begin.commands() != 0 ||
      std::min({begin.forwards(), begin.updates(), begin.next_batch()}) < 0) {
    return absl::InvalidArgumentError(
        "begin: forwards, updates and next_batch, each 0 or more; commands is not set");
  }
  PreparedSession session;
  session.begin = begin;
  session.spec = request.spec();
  session.spec.set_steps(kEndless);
  SessionParts parts;
  parts.keep.assign(request.keep().begin(), request.keep().end());
  const bool has_dataset = !request.spec().dataset().uri().empty();
  v1::TrainingSpec checked = session.spec;
  if (!has_dataset) {
    if (request.spec().dataset().holdout_fraction() != 0) {
      return Field("dataset.holdout_fraction", "there is no dataset");
    }
    absl::StatusOr<std::shared_ptr<const Dataset>> columns =
        OutlineOfColumns(registry, request.spec(), request.columns());
    if (!columns.ok()) return columns.status();
    parts.columns = *std::move(columns);
    checked.mutable_dataset()->set_uri("artifact:none");  // is not opened
    checked.mutable_dataset()->set_format(v1::Dataset::NPZ);
  } else if (!request.columns().empty()) {
    return absl::InvalidArgumentError("columns: the dataset has its own; leave one of them out");
  }
  absl::StatusOr<PreparedJob> job = PrepareJob(registry, *artifacts, roots, checked, &parts);
  if (!job.ok()) return job.status();
  if (job->tokens != nullptr) {
    session.training_examples = job->tokens->training_examples();
    session.examples = job->tokens->examples();
    absl::StatusOr<std::string> kept = KeepTokens(artifacts, *job->tokens, owner);
    if (!kept.ok()) return kept.status();
    session.spec.mutable_dataset()->set_uri(absl::StrCat("artifact:", *kept));
    session.spec.mutable_dataset()->set_format(v1::Dataset::NPZ);
    job->notes.push_back(absl::StrCat("the tokens of the text are the dataset '", *kept, "'"));
    job->tokens.reset();
  } else if (has_dataset) {
    absl::StatusOr<std::shared_ptr<const Dataset>> outline =
        OutlineDataset(session.spec.dataset(), *artifacts, roots);
    if (!outline.ok()) return outline.status();
    session.training_examples = (*outline)->training_examples();
    session.examples = (*outline)->examples();
  }
  session.spec.set_batch_size(job->batch_size);
  for (const Value& value : job->graph.values()) {
    if (value.kind != ValueKind::kInput || value.example_weights) continue;
    session.columns[job->columns.at(value.name)] = {
        value.type.dtype, {value.type.dims.begin() + 1, value.type.dims.end()}};
  }
  for (auto& [input, ranges] : IndexRanges(registry, job->graph)) {
    std::vector<InputRange>& of_column = session.ranges[job->columns.at(input)];
    of_column.insert(of_column.end(), ranges.begin(), ranges.end());
  }
  for (const auto& [name, value] : job->graph.outputs) {
    const Value& output = job->graph.value(value);
    if (IsReported(registry, job->graph, name, value)) {
      session.reported.insert(name);
      continue;
    }
    if (output.producer == kNoNode) continue;
    session.outputs[name] = output.type;
    session.needs[name] = ColumnsOf(job->graph, value, job->columns);
  }
  session.job = *std::move(job);
  return session;
}

}  // namespace espalier
