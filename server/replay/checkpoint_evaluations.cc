#include "server/replay/checkpoint_evaluations.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/version.h"
#include "planner/search/apply_rewrites.h"
#include "server/jobs/prepare_validation.h"
#include "server/jobs/rank_report_merger.h"
#include "server/jobs/stored_values.h"
#include "server/replay/fetch_checkpoint.h"
#include "storage/data_folder_names.h"

namespace espalier {
namespace {

// Of EvaluationTask.lease: loading may cost a fifth of the time.
constexpr int kLeaseOfLoading = 4;
// A job that waits is woken when workers become idle, and leases them at once.
constexpr absl::Duration kYield = absl::Milliseconds(100);

// The values that the workers report, such as "loss", as rows.
std::vector<v1::HistoryRow> RowsOf(const v1::StepReport& evaluation, const std::string& prefix,
                                   int64_t steps_done) {
  std::vector<v1::HistoryRow> rows;
  std::map<std::string, double> values(evaluation.values().begin(), evaluation.values().end());
  for (const auto& [name, value] : values) {
    v1::HistoryRow& row = rows.emplace_back();
    row.set_step(steps_done);
    row.set_name(absl::StrCat(prefix, name));
    row.set_source(v1::HistoryRow::REPLAY);
    row.mutable_value()->set_scalar(value);
  }
  return rows;
}

}  // namespace

absl::StatusOr<v1::TrainingSpec> SpecToEvaluate(const v1::TrainingSpec& spec,
                                                const v1::ReplaySpec& replay) {
  const bool given = replay.has_evaluate() && !replay.evaluate().uri().empty();
  v1::TrainingSpec evaluated = spec;
  if (!given) {
    if (spec.dataset().holdout_fraction() > 0 || spec.validation().has_dataset()) return evaluated;
    return absl::FailedPreconditionError(
        "the job kept no examples apart for an evaluation; name a dataset to evaluate");
  }
  const v1::Dataset::Format trained =
      spec.dataset().format() == v1::Dataset::STREAM ? v1::Dataset::NPZ : spec.dataset().format();
  v1::Dataset* dataset = evaluated.mutable_validation()->mutable_dataset();
  *dataset = replay.evaluate();
  if (dataset->format() == v1::Dataset::FORMAT_UNSPECIFIED) dataset->set_format(trained);
  if (dataset->format() != trained) {
    return absl::InvalidArgumentError(
        absl::StrCat("evaluate.format is ", v1::Dataset::Format_Name(dataset->format()),
                     "; the job was trained on ", v1::Dataset::Format_Name(trained),
                     ": give the examples as such, with the columns of its dataset"));
  }
  // No step is trained, so it does not matter that more examples would be.
  evaluated.mutable_dataset()->clear_holdout_fraction();
  return evaluated;
}

absl::StatusOr<EvaluationProbes> FindEvaluationProbes(const AttemptTools& tools,
                                                      const ReplayProgram& program,
                                                      const ReplayQuestions& asked,
                                                      const std::string& prefix) {
  const PreparedJob& prepared = program.prepared();
  if (!prepared.evaluates || program.lowered().evaluation.empty()) {
    return absl::FailedPreconditionError("the job has no examples to evaluate");
  }
  if (prepared.validation_tokens != nullptr) {
    return absl::InvalidArgumentError(
        "evaluate: a text that is to be tokenized is not accepted; give its tokens as NPZ, with "
        "the columns of the job's dataset");
  }
  absl::StatusOr<Graph> graph = prepared.graph;
  if (program.plan().rewrites_size() > 0) {
    graph = RewrittenGraph(*tools.registry, prepared.graph, program.plan());
  }
  if (!graph.ok()) return graph.status();
  EvaluatedBatches batches;
  batches.prefix = prefix;
  batches.size = prepared.batch_size;
  batches.examples = prepared.evaluation_examples;
  batches.count = (batches.examples + batches.size - 1) / batches.size;
  return FindEvaluationProbes(
      *tools.registry, *graph, program.lowered().evaluation, asked, batches, [&] {
        return GraphBeforeRewrites(*tools.registry, prepared.model, prepared.graph, batches.size);
      });
}

absl::StatusOr<std::unique_ptr<CheckpointEvaluations>> CheckpointEvaluations::Make(
    const AttemptTools& tools, EvaluationTask task, CheckpointEvaluationObserver* observer) {
  if (task.members.size() != task.program->ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan is for ", task.program->ranks(),
                                                   " workers, not ", task.members.size()));
  }
  absl::StatusOr<EvaluationProbes> probes =
      FindEvaluationProbes(tools, *task.program, task.questions, task.prefix);
  if (!probes.ok()) return probes.status();
  std::unique_ptr<CheckpointEvaluations> made(
      new CheckpointEvaluations(tools, std::move(task), observer));
  made->probes_ = *std::move(probes);
  return made;
}

void CheckpointEvaluations::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (ranks_ != nullptr) ranks_->Cancel();
}

std::vector<v1::LoadProgramRequest> CheckpointEvaluations::Requests(
    const std::string& checkpoint, const std::string& values) const {
  const PreparedJob& prepared = task_.program->prepared();
  const LoweredPlan& lowered = task_.program->lowered();
  std::vector<v1::LoadProgramRequest> requests(lowered.training.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    v1::LoadProgramRequest& request = requests[r];
    *request.mutable_program() = lowered.training[r];
    *request.mutable_evaluation() = lowered.evaluation[r];
    *request.mutable_dataset() = task_.spec->dataset();
    if (task_.spec->validation().has_dataset()) {
      *request.mutable_validation() = ValidationDataset(*task_.spec);
    }
    request.set_batch_size(task_.spec->batch_size());
    request.set_pad_evaluation(prepared.pad_evaluation);
    request.set_checkpoint_dir(checkpoint);
    if (prepared.init_folder.has_value()) {
      request.set_init_folder(tools_.data_folder->NameOf(prepared.init_folder->path()));
    }
    request.set_values_folder(values);
    const std::vector<v1::RankProbe>& probes = probes_.found.by_rank[r];
    request.mutable_evaluation_probes()->Assign(probes.begin(), probes.end());
  }
  return requests;
}

absl::Status CheckpointEvaluations::Load(const std::string& checkpoint) {
  const absl::Time begin = absl::Now();
  const PreparedJob& prepared = task_.program->prepared();
  // A worker refuses an attempt of a name that it has stopped.
  const std::string name = absl::StrCat(task_.name, "-", leases_++);
  absl::StatusOr<std::unique_ptr<ReplayRanks>> ranks =
      ReplayRanks::Create(tools_, name, task_.members);
  if (!ranks.ok()) return absl::AbortedError(ranks.status().message());
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return absl::CancelledError("the replay was cancelled");
    ranks_ = *std::move(ranks);
  }
  const bool initial = checkpoint.empty() && !prepared.init_folder.has_value();
  const std::string folder = absl::StrCat(kCheckpointsFolder, "/", name);
  absl::Cleanup remove = [&] { tools_.data_folder->Delete(folder).IgnoreError(); };
  absl::StatusOr<StoredValues> stored = StoredValues::Write(
      *tools_.data_folder, absl::StrCat(folder, "/values"), task_.job_id, prepared.graph,
      initial ? prepared.initial_values : std::vector<InitialValue>());
  if (!stored.ok()) return stored.status();
  absl::StatusOr<std::vector<v1::LoadProgramReply>> loaded =
      ranks_->Load(Requests(checkpoint, stored->folder()));
  std::move(remove).Invoke();
  if (!loaded.ok()) return loaded.status();
  const absl::Time end = absl::Now();
  lease_end_ = end + std::max(task_.lease, kLeaseOfLoading * (end - begin));
  // Others may not know RunRequest.restore_checkpoint, and would evaluate the former values.
  const auto restores = [](const auto& rank) { return rank.program_version() == kEspalierVersion; };
  if (!std::all_of(loaded->begin(), loaded->end(), restores)) lease_end_ = begin;
  return absl::OkStatus();
}

void CheckpointEvaluations::GiveBack() {
  std::unique_ptr<ReplayRanks> stopped;
  absl::MutexLock lock(&mutex_);
  stopped = std::move(ranks_);
}

absl::Status CheckpointEvaluations::Yield() {
  if (ranks_ == nullptr) return absl::OkStatus();
  GiveBack();
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), kYield);
  return cancelled_ ? absl::CancelledError("the replay was cancelled") : absl::OkStatus();
}

absl::Status CheckpointEvaluations::Evaluate(const EvaluatedCheckpoint& checkpoint) {
  v1::RunRequest request;
  request.set_first_step(checkpoint.steps_done);
  request.set_last_step(checkpoint.steps_done);
  request.set_evaluate_at_end(true);
  request.set_goes_on(true);  // there is no folder for a checkpoint
  std::optional<FetchedCheckpoint> fetched;
  if (!checkpoint.directory.empty()) {
    absl::StatusOr<FetchedCheckpoint> found =
        FetchCheckpoint(tools_, task_.job_id, checkpoint.directory, task_.replay_id, task_.number,
                        [this] { return cancelled(); });
    if (!found.ok()) return found.status();
    fetched.emplace(*std::move(found));
  }
  const std::string folder = fetched.has_value() ? fetched->folder() : "";
  // No checkpoint has the initial values.
  if (ranks_ == nullptr || folder.empty() || absl::Now() >= lease_end_) {
    absl::Status ready = Yield();
    if (ready.ok()) ready = Load(folder);
    if (!ready.ok()) return ready;
  } else {
    request.set_restore_checkpoint(folder);
  }
  RankReportMerger merger(static_cast<int>(ranks_->size()), task_.job_id);
  merger.SetFinishes(task_.program->prepared().finishes);
  EvaluationAnswers answers(&probes_);
  std::optional<v1::StepReport> evaluation;
  absl::Status ran =
      ranks_->Run(request, [&](size_t rank, const v1::RunEvent& event) -> absl::Status {
        if (event.has_probes()) return answers.Add(rank, event.probes());
        if (!event.has_evaluation()) return absl::OkStatus();
        std::optional<v1::StepReport> merged =
            merger.AddEvaluation(static_cast<int>(rank), event.evaluation());
        if (merged.has_value()) evaluation = std::move(merged);
        return absl::OkStatus();
      });
  if (!ran.ok()) return ran;
  if (!evaluation.has_value()) {
    return absl::InternalError("the workers ended the run without an evaluation");
  }
  std::vector<v1::HistoryRow> rows = RowsOf(*evaluation, task_.prefix, checkpoint.steps_done);
  absl::StatusOr<std::vector<v1::HistoryRow>> answered = answers.Finish(checkpoint.steps_done);
  if (!answered.ok()) return answered.status();
  std::move(answered->begin(), answered->end(), std::back_inserter(rows));
  return observer_->OnRows(checkpoint, std::move(rows));
}

absl::Status CheckpointEvaluations::Run() {
  absl::Status status;
  for (const EvaluatedCheckpoint& checkpoint : task_.checkpoints) {
    status = Evaluate(checkpoint);
    if (!status.ok()) break;
  }
  GiveBack();
  return status;
}

}  // namespace espalier
