#include "server/replay/replay_planner.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/recordings/spool.h"
#include "server/replay/check_inputs.h"
#include "server/replay/plan_totals.h"
#include "server/replay/run_values.h"

namespace espalier {
namespace {

// Guesses, for estimates and for whether a checkpoint is worth loading.
constexpr double kLoadBytesPerSecond = 500e6;
constexpr double kLoadSeconds = 0.2;

bool CannotBeReplayed(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

absl::Status CheckReplaySpec(const v1::ReplaySpec& spec) {
  if (spec.run().empty()) return absl::InvalidArgumentError("run: must be given");
  if (spec.first_step() < 0 || spec.end_step() < 0 || spec.every() < 0) {
    return absl::InvalidArgumentError("first_step, end_step, every: must not be negative");
  }
  if (spec.end_step() > 0 && spec.first_step() >= spec.end_step()) {
    return absl::InvalidArgumentError(absl::StrCat("steps ", spec.first_step(), ":",
                                                   spec.end_step(), ": there are none between"));
  }
  if (spec.max_workers() < 0) {
    return absl::InvalidArgumentError("max_workers: must not be negative");
  }
  if (spec.segment() != 0 || spec.segments() != 0) {
    return PartOfSteps({0, 1, 1}, spec.segment(), spec.segments()).status();
  }
  return absl::OkStatus();
}

}  // namespace

double ReadSeconds(const ReplayedRun& run) {
  int64_t bytes = 0;
  for (const v1::RecordedCheckpoint& checkpoint : run.recording.checkpoints()) {
    bytes = std::max(bytes, checkpoint.bytes());
  }
  return static_cast<double>(bytes) / kLoadBytesPerSecond;
}

double LoadSeconds(const ReplayedRun& run) { return kLoadSeconds + ReadSeconds(run); }

std::string ReplayedRun::name() const {
  return absl::StrCat(recording.experiment(), "@", recording.version());
}

v1::HistoryRow ReplayedRun::Row() const {
  v1::HistoryRow row;
  row.set_experiment(recording.experiment());
  row.set_version(recording.version());
  row.set_job_id(job_id);
  return row;
}

size_t ReplayedRun::RanksAt(int64_t step) const {
  const v1::Plan& plan = recording.attempts(static_cast<int>(AttemptAt(step))).plan();
  return static_cast<size_t>(std::max(1, plan.devices_size()));
}

std::string ReplayedRun::WhyNoInitialState() const {
  if (!spec.init_artifact().empty()) {
    return absl::StrCat("it began with the weights of the model '", spec.init_artifact(),
                        "', which its recording does not have");
  }
  if (state_program != nullptr) return "";
  if (!inputs.ok()) return "its initial values cannot be made without what is missing";
  return "this version of Espalier makes another graph of its model";
}

std::vector<int64_t> ReplayedRun::CheckpointsOf(const v1::ReplaySegment& segment,
                                                int64_t every) const {
  std::vector<int64_t> all = checkpoints(), chosen;
  if (segment.kind() == v1::ReplaySegment::EVALUATION || WhyNoInitialState().empty()) {
    all.insert(all.begin(), 0);
  }
  for (const int64_t step : all) {
    if (step >= segment.first_step() && step < segment.end_step() &&
        (step - logged.first) % std::max<int64_t>(1, every) == 0) {
      chosen.push_back(step);
    }
  }
  return chosen;
}

size_t ReplayedRun::AttemptAt(int64_t step) const {
  size_t found = 0;
  for (int i = 0; i < recording.attempts_size(); ++i) {
    if (recording.attempts(i).first_step() <= step) found = static_cast<size_t>(i);
  }
  return found;
}

std::vector<int64_t> ReplayedRun::checkpoints() const {
  std::vector<int64_t> steps;
  for (const v1::RecordedCheckpoint& checkpoint : recording.checkpoints()) {
    steps.push_back(checkpoint.steps_done());
  }
  return steps;
}

const v1::RecordedCheckpoint* ReplayedRun::Find(int64_t checkpoint) const {
  for (const v1::RecordedCheckpoint& found : recording.checkpoints()) {
    if (found.steps_done() == checkpoint) return &found;
  }
  return nullptr;
}

std::string ReplayedRun::FolderOf(int64_t checkpoint) const {
  const v1::RecordedCheckpoint* const found = Find(checkpoint);
  return found == nullptr ? "" : found->directory();
}

absl::StatusOr<std::vector<std::string>> ReplayPlanner::Find(const std::string& run,
                                                             const Caller& caller,
                                                             RunVersions versions) const {
  if (run.empty()) return absl::InvalidArgumentError("run: must be given");
  const absl::StatusOr<std::vector<RunName>> found = find_(run, versions, caller);
  if (!found.ok()) return found.status();
  std::vector<std::string> ids;
  for (const RunName& name : *found) ids.push_back(name.job_id);
  return ids;
}

absl::Status CheckWorkers(const v1::ReplaySpec& spec, const ReplayedRun& run, size_t ranks) {
  if (spec.max_workers() == 0 || static_cast<size_t>(spec.max_workers()) >= ranks) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("max_workers: ", run.name(), " was trained on ", ranks,
                   " workers, which its plan needs: allow as many, or another plan (--any-plan)"));
}

int ReplayPlanner::MostWorkers(const v1::ReplaySpec& spec) const {
  const int idle = std::max(1, static_cast<int>(tools_.workers->Idle().size()));
  return spec.max_workers() > 0 ? std::min(idle, spec.max_workers()) : idle;
}

absl::StatusOr<ReplayedRun> ReplayPlanner::LoadRun(const v1::ReplaySpec& spec,
                                                   const std::string& job_id) const {
  ReplayedRun run;
  run.job_id = job_id;
  absl::StatusOr<v1::Recording> recording = tools_.recordings->Load(job_id);
  if (!recording.ok()) return recording.status();
  run.recording = *std::move(recording);
  absl::StatusOr<JobRecord> record = jobs_.Get(job_id);
  if (!record.ok()) return record.status();
  run.spec = std::move(*record->job.mutable_spec());
  if (!IsRecorded(run.spec)) {
    return absl::FailedPreconditionError(
        absl::StrCat(run.name(),
                     " has no recording: it was trained with record off; train it again with "
                     "--record=adaptive"));
  }
  if (run.spec.dataset().format() == v1::Dataset::STREAM) {
    return absl::FailedPreconditionError(
        absl::StrCat(run.name(),
                     " trained on pushed examples, which are not kept; train on a file or an "
                     "uploaded dataset to replay steps"));
  }
  const int64_t done = run.recording.job().steps_done();
  // The last checkpoint is after the last step.
  const int64_t end = done + (spec.at_checkpoints() ? 1 : 0);
  if (done == 0 || run.recording.attempts().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(run.name(), " has not trained any step yet"));
  }
  if (std::max(spec.end_step(), spec.first_step() + 1) > end) {
    const std::string asked = spec.end_step() > 0 ? absl::StrCat(spec.end_step()) : "";
    return absl::InvalidArgumentError(absl::StrCat("steps ", spec.first_step(), ":", asked, ": ",
                                                   run.name(), " has trained the steps 0 to ",
                                                   done - 1));
  }
  const bool evaluates = spec.evaluate_holdout() || spec.has_evaluate();
  run.inputs = CheckInputs(*tools_.artifacts, *tools_.dataset_roots, run.recording, run.spec,
                           spec.at_checkpoints() && evaluates && !spec.has_evaluate());
  // The state at checkpoints is there without them.
  if (!run.inputs.ok() && (!spec.at_checkpoints() || evaluates)) return run.inputs;
  const std::string spool = tools_.spool == nullptr ? "" : tools_.spool->url();
  v1::Recording reachable = run.recording;
  reachable.clear_checkpoints();
  for (const v1::RecordedCheckpoint& checkpoint : run.recording.checkpoints()) {
    if (checkpoint.stored() || (checkpoint.spooled() && checkpoint.spool() == spool)) {
      *reachable.add_checkpoints() = checkpoint;
    } else if (checkpoint.spooled()) {
      run.elsewhere[checkpoint.steps_done()] = checkpoint.spool();
    }
  }
  run.recording = std::move(reachable);
  run.logged = {spec.first_step(), spec.end_step() > 0 ? spec.end_step() : end,
                std::max<int64_t>(1, spec.every())};
  if (spec.segments() > 0 && !spec.at_checkpoints()) {
    absl::StatusOr<LoggedSteps> part = PartOfSteps(run.logged, spec.segment(), spec.segments());
    if (!part.ok()) return part.status();
    run.logged = *part;
  }
  return run;
}

absl::StatusOr<std::shared_ptr<const ReplayProgram>> ReplayPlanner::PlanFor(
    const v1::TrainingSpec& spec, const ReplayQuestions& asked,
    const std::vector<v1::Device>& devices) const {
  absl::StatusOr<PreparedJob> prepared =
      PrepareJob(*tools_.registry, *tools_.artifacts, *tools_.dataset_roots, spec);
  if (!prepared.ok()) return prepared.status();
  CalibratedPlanner::Request request;
  request.graph = &prepared->graph;
  request.batch_size = spec.batch_size();
  request.machine.devices = devices;
  request.machine.communication = tools_.planner->Communication(devices);
  request.machine.link = tools_.workers->MeasuredLink();
  if (request.machine.link.bandwidth() <= 0) request.machine.link = DefaultLink();
  request.optimizer = prepared->optimizer;
  // The memory limits of the job, but any placement.
  *request.search.mutable_memory() = spec.search().memory();
  request.search.set_strategy(devices.size() == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                                  : v1::SearchOptions::SEARCH);
  absl::StatusOr<v1::Plan> plan = tools_.planner->Make(request);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<std::unique_ptr<ReplayProgram>> program =
      ReplayProgram::Make(tools_, spec, *plan, asked);
  if (!program.ok()) return program.status();
  return std::shared_ptr<const ReplayProgram>(*std::move(program));
}

absl::Status ReplayPlanner::AddPrograms(const v1::ReplaySpec& spec,
                                        const std::vector<int64_t>& checkpoints,
                                        ReplayedRun* run) const {
  const absl::StatusOr<ReplayQuestions> asked = Parse(spec);
  if (!asked.ok()) return asked.status();
  run->programs.resize(static_cast<size_t>(run->recording.attempts_size()));
  for (const int64_t checkpoint : checkpoints) {
    const size_t attempt = run->AttemptAt(checkpoint);
    std::shared_ptr<const ReplayProgram>& program = run->programs[attempt];
    if (program != nullptr) continue;
    const v1::Plan& plan = run->recording.attempts(static_cast<int>(attempt)).plan();
    absl::StatusOr<std::unique_ptr<ReplayProgram>> made =
        ReplayProgram::Make(tools_, run->spec, plan, *asked);
    if (absl::IsFailedPrecondition(made.status()) && !spec.any_plan()) {
      return absl::FailedPreconditionError(
          absl::StrCat(run->name(), ": ", made.status().message(),
                       "; to replay it by another plan, within a tolerance: --any-plan"));
    }
    // Names are looked up in the recorded plan's programs, where there are any.
    if (absl::IsFailedPrecondition(made.status())) {
      const std::vector<Member> living = tools_.workers->Living();
      if (living.empty()) {
        return absl::FailedPreconditionError(
            absl::StrCat(run->name(), ": there is no worker to plan for; start one"));
      }
      absl::StatusOr<std::shared_ptr<const ReplayProgram>> other =
          PlanFor(run->spec, *asked, {living[0].device});
      if (!other.ok()) return other.status();
      program = *std::move(other);
      continue;
    }
    if (!made.ok()) {
      return absl::Status(made.status().code(),
                          absl::StrCat(run->name(), ": ", made.status().message()));
    }
    program = *std::move(made);
  }
  return absl::OkStatus();
}

absl::Status ReplayPlanner::AddTraining(const v1::ReplaySpec& spec, ReplayedRun* run,
                                        PlanTotals* totals) const {
  v1::ReplayEstimate& estimate = totals->estimate;
  SegmentRequest request;
  request.logged = run->logged;
  request.checkpoints = run->checkpoints();
  for (const v1::RecordedAttempt& attempt : run->recording.attempts()) {
    request.attempts.push_back(attempt.first_step());
  }
  const size_t ranks = spec.any_plan() ? 1 : run->RanksAt(run->logged.first);
  if (absl::Status s = CheckWorkers(spec, *run, ranks); !s.ok()) return s;
  request.most_at_once = std::max(1, totals->most_workers / static_cast<int>(ranks));
  request.step_seconds = run->recording.job().median_step_seconds();
  request.load_seconds = LoadSeconds(*run);
  const std::vector<SegmentCut> cuts = CutSegments(request);
  std::vector<int64_t> begins;
  for (const SegmentCut& cut : cuts) begins.push_back(cut.checkpoint);
  if (absl::Status s = AddPrograms(spec, begins, run); !s.ok()) return s;
  std::vector<int64_t> elsewhere;  // from which fewer steps would be trained
  for (const auto& [checkpoint, spool] : run->elsewhere) {
    if (std::any_of(cuts.begin(), cuts.end(), [step = checkpoint](const SegmentCut& cut) {
          return cut.checkpoint < step && step <= cut.logged.first;
        })) {
      elsewhere.push_back(checkpoint);
    }
  }
  totals->AddElsewhere(*run, elsewhere);
  const ReplayProgram* program = nullptr;
  for (const auto& one : run->programs) {
    if (one != nullptr) program = one.get();
  }
  if (program == nullptr) return absl::OkStatus();  // this part of its steps is empty
  totals->AddRows(*program, run->logged.count());
  totals->AddNames(totals->asked.probes, program->probes(), run->name());
  totals->AddFragments(totals->asked.fragments, program->questions().lacking_fragments,
                       run->name());
  if (LacksAll(totals->asked, *program)) return absl::OkStatus();
  totals->AddDerived(program->questions().probes.derived, run->name());
  totals->AddLeftOut(program->questions().probes.left_out, run->name());
  for (const SegmentCut& cut : cuts) {
    v1::ReplaySegment segment;
    segment.set_job_id(run->job_id);
    segment.set_checkpoint_step(cut.checkpoint);
    segment.set_first_step(cut.logged.first);
    segment.set_end_step(cut.logged.end);
    estimate.set_steps(estimate.steps() + cut.steps());
    const double loading = request.load_seconds + totals->AddFetched(*run, {cut.checkpoint});
    totals->loading += loading;
    totals->AddSegment(std::move(segment),
                       loading + static_cast<double>(cut.steps()) * request.step_seconds, ranks);
  }
  estimate.set_logged_steps(estimate.logged_steps() + run->logged.count());
  return absl::OkStatus();
}

namespace {

// What to ask instead of inputs of the model that read columns of other names.
std::string ColumnsMeant(const v1::TrainingSpec& spec, absl::string_view probe) {
  std::string text;
  for (const auto& [input, column] : spec.dataset().columns()) {
    if (!absl::StrContains(probe, absl::StrCat("batch(", input, ")"))) continue;
    absl::StrAppend(&text, "; the model's input '", input, "' reads the column '", column,
                    "': batch(", column, ")");
  }
  return text;
}

}  // namespace

absl::StatusOr<PlannedReplay> ReplayPlanner::Plan(const v1::ReplaySpec& spec,
                                                  const std::vector<std::string>& job_ids) const {
  if (absl::Status s = CheckReplaySpec(spec); !s.ok()) return s;
  absl::StatusOr<ReplayQuestions> asked = Parse(spec);
  if (!asked.ok()) return asked.status();
  PlannedReplay planned;
  PlanTotals totals;
  totals.asked = *std::move(asked);
  totals.most_workers = MostWorkers(spec);
  for (const std::string& job_id : job_ids) {
    absl::StatusOr<ReplayedRun> run = LoadRun(spec, job_id);
    absl::Status status = run.status();
    if (status.ok()) {
      status = spec.at_checkpoints() ? AddCheckpoints(spec, &*run, &totals)
                                     : AddTraining(spec, &*run, &totals);
    }
    // Of many, those that can be replayed are.
    if (job_ids.size() > 1 && CannotBeReplayed(status)) {
      totals.estimate.add_notes(std::string(status.message()));
      continue;
    }
    if (!status.ok()) return status;
    planned.runs.push_back(*std::move(run));
  }
  v1::ReplayEstimate& estimate = totals.estimate;
  if (planned.runs.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("none of these runs can be replayed: ",
                                                      absl::StrJoin(estimate.notes(), "; ")));
  }
  std::set<std::string> names;  // of what a wildcard matches, some may be missing
  for (const ProbeExpression& probe : totals.asked.probes) names.insert(ToString(probe));
  for (const GraphFragment& fragment : totals.asked.fragments) names.insert(fragment.name);
  for (const auto& [name, why] : totals.lacking) {
    if (!names.contains(name) || totals.known.contains(name)) continue;
    const ReplayedRun& run = planned.runs[0];
    return absl::Status(why.code(), absl::StrCat(why.message(), ColumnsMeant(run.spec, name),
                                                 WhereNamesAre(run.name())));
  }
  estimate.set_loading_seconds(totals.loading / totals.most_workers);
  estimate.set_seconds(std::max(totals.longest, totals.seconds / totals.most_workers));
  planned.estimate = std::move(estimate);
  return planned;
}

}  // namespace espalier
