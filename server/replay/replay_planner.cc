#include "server/replay/replay_planner.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/replay/probe_set.h"

namespace espalier {
namespace {

// Guesses, for estimates and for whether a checkpoint is worth loading.
constexpr double kLoadBytesPerSecond = 500e6;
constexpr double kLoadSeconds = 0.2;
constexpr int64_t kRowBytes = 100;
constexpr int64_t kElementBytes = 8;

double LoadSeconds(const ReplayedRun& run) {
  int64_t bytes = 0;
  for (const v1::RecordedCheckpoint& checkpoint : run.recording.checkpoints()) {
    bytes = std::max(bytes, checkpoint.bytes());
  }
  return kLoadSeconds + static_cast<double>(bytes) / kLoadBytesPerSecond;
}

// Of one row.
int64_t BytesOf(const NamedProbe& probe, const ReplayProgram& program) {
  const Reduction& reduction = probe.probe.reduction;
  switch (reduction.kind) {
    case Reduction::kHistogram:
      return kRowBytes + reduction.count * kElementBytes;
    case Reduction::kSample:
    case Reduction::kTopK:
      return kRowBytes + 2 * reduction.count * kElementBytes;
    case Reduction::kQuantiles:
      return kRowBytes + 2 * static_cast<int64_t>(reduction.quantiles.size()) * kElementBytes;
    case Reduction::kFull:
      break;
    default:
      return kRowBytes;
  }
  int64_t bytes = kRowBytes;
  for (size_t r = 0; r < program.ranks(); ++r) {
    for (const v1::RankProbe& read : program.probes().by_rank[r]) {
      if (read.probe() != probe.numbers[0]) continue;
      for (const v1::ProbePoint& point : read.points()) {
        const v1::TensorSpec& part = program.lowered().training[r].buffers(point.buffer()).spec();
        int64_t elements = kElementBytes / 2;  // mostly F32
        for (const int64_t size : part.dims()) elements *= size;
        bytes += elements;
      }
    }
  }
  return bytes;
}

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

std::string ReplayedRun::name() const {
  return absl::StrCat(recording.experiment(), "@", recording.version());
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

std::string ReplayedRun::FolderOf(int64_t checkpoint) const {
  for (const v1::RecordedCheckpoint& found : recording.checkpoints()) {
    if (found.steps_done() == checkpoint) return found.directory();
  }
  return "";
}

absl::StatusOr<std::vector<std::string>> ReplayPlanner::Find(const std::string& run,
                                                             const Caller& caller) const {
  if (run.empty()) return absl::InvalidArgumentError("run: must be given");
  const absl::StatusOr<std::vector<RunName>> found = find_(run, RunVersions::kNewest, caller);
  if (!found.ok()) return found.status();
  std::vector<std::string> ids;
  for (const RunName& name : *found) ids.push_back(name.job_id);
  return ids;
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
  if (done == 0 || run.recording.attempts().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(run.name(), " has not trained any step yet"));
  }
  if (std::max(spec.end_step(), spec.first_step() + 1) > done) {
    const std::string end = spec.end_step() > 0 ? absl::StrCat(spec.end_step()) : "";
    return absl::InvalidArgumentError(absl::StrCat("steps ", spec.first_step(), ":", end, ": ",
                                                   run.name(), " has trained the steps 0 to ",
                                                   done - 1));
  }
  run.logged = {spec.first_step(), spec.end_step() > 0 ? spec.end_step() : done,
                std::max<int64_t>(1, spec.every())};
  if (spec.segments() > 0) {
    absl::StatusOr<LoggedSteps> part = PartOfSteps(run.logged, spec.segment(), spec.segments());
    if (!part.ok()) return part.status();
    run.logged = *part;
  }
  return run;
}

absl::StatusOr<std::shared_ptr<const ReplayProgram>> ReplayPlanner::PlanFor(
    const ReplayedRun& run, const std::vector<std::string>& log,
    const std::vector<v1::Device>& devices) const {
  absl::StatusOr<std::vector<ProbeExpression>> probes = ParseProbes(log);
  if (!probes.ok()) return probes.status();
  absl::StatusOr<PreparedJob> prepared =
      PrepareJob(*tools_.registry, *tools_.artifacts, *tools_.dataset_roots, run.spec);
  if (!prepared.ok()) return prepared.status();
  CalibratedPlanner::Request request;
  request.graph = &prepared->graph;
  request.batch_size = run.spec.batch_size();
  request.machine.devices = devices;
  request.machine.communication = tools_.planner->Communication(devices);
  request.machine.link = tools_.workers->MeasuredLink();
  if (request.machine.link.bandwidth() <= 0) request.machine.link = DefaultLink();
  request.optimizer = prepared->optimizer;
  // The memory limits of the job, but any placement.
  *request.search.mutable_memory() = run.spec.search().memory();
  request.search.set_strategy(devices.size() == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                                  : v1::SearchOptions::SEARCH);
  absl::StatusOr<v1::Plan> plan = tools_.planner->Make(request);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<std::unique_ptr<ReplayProgram>> program =
      ReplayProgram::Make(tools_, run.spec, *plan, *probes);
  if (!program.ok()) return program.status();
  return std::shared_ptr<const ReplayProgram>(*std::move(program));
}

absl::Status ReplayPlanner::AddPrograms(const v1::ReplaySpec& spec,
                                        const std::vector<int64_t>& checkpoints,
                                        ReplayedRun* run) const {
  const std::vector<std::string> log(spec.log().begin(), spec.log().end());
  absl::StatusOr<std::vector<ProbeExpression>> probes = ParseProbes(log);
  if (!probes.ok()) return probes.status();
  run->programs.resize(static_cast<size_t>(run->recording.attempts_size()));
  for (const int64_t checkpoint : checkpoints) {
    const size_t attempt = run->AttemptAt(checkpoint);
    std::shared_ptr<const ReplayProgram>& program = run->programs[attempt];
    if (program != nullptr) continue;
    const v1::Plan& plan = run->recording.attempts(static_cast<int>(attempt)).plan();
    absl::StatusOr<std::unique_ptr<ReplayProgram>> made =
        ReplayProgram::Make(tools_, run->spec, plan, *probes);
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
          PlanFor(*run, log, {living[0].device});
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

absl::StatusOr<PlannedReplay> ReplayPlanner::Plan(const v1::ReplaySpec& spec,
                                                  const std::vector<std::string>& job_ids) const {
  if (absl::Status s = CheckReplaySpec(spec); !s.ok()) return s;
  absl::StatusOr<std::vector<ProbeExpression>> probes =
      ParseProbes({spec.log().begin(), spec.log().end()});
  if (!probes.ok()) return probes.status();
  PlannedReplay planned;
  v1::ReplayEstimate& estimate = planned.estimate;
  const int most_workers = MostWorkers(spec);
  double all_seconds = 0, longest = 0, loading = 0;
  std::map<std::string, std::string> lacking;  // why, by probe
  std::set<std::string> asked, found;
  for (const ProbeExpression& probe : *probes) asked.insert(ToString(probe));
  for (const std::string& job_id : job_ids) {
    absl::StatusOr<ReplayedRun> loaded = LoadRun(spec, job_id);
    // Of many, those that can be replayed are.
    if (job_ids.size() > 1 && CannotBeReplayed(loaded.status())) {
      estimate.add_notes(std::string(loaded.status().message()));
      continue;
    }
    if (!loaded.ok()) return loaded.status();
    ReplayedRun& run = planned.runs.emplace_back(*std::move(loaded));
    SegmentRequest request;
    request.logged = run.logged;
    request.checkpoints = run.checkpoints();
    for (const v1::RecordedAttempt& attempt : run.recording.attempts()) {
      request.attempts.push_back(attempt.first_step());
    }
    const size_t ranks =
        spec.any_plan()
            ? 1
            : static_cast<size_t>(std::max(
                  1, run.recording.attempts(static_cast<int>(run.AttemptAt(run.logged.first)))
                         .plan()
                         .devices_size()));
    if (spec.max_workers() > 0 && static_cast<size_t>(spec.max_workers()) < ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "max_workers: ", run.name(), " was trained on ", ranks,
          " workers, which its plan needs: allow as many, or another plan (--any-plan)"));
    }
    request.most_at_once = std::max(1, most_workers / static_cast<int>(ranks));
    request.step_seconds = run.recording.job().median_step_seconds();
    request.load_seconds = LoadSeconds(run);
    const std::vector<SegmentCut> cuts = CutSegments(request);
    std::vector<int64_t> begins;
    for (const SegmentCut& cut : cuts) begins.push_back(cut.checkpoint);
    if (absl::Status s = AddPrograms(spec, begins, &run); !s.ok()) return s;
    const ReplayProgram* program = nullptr;
    for (const auto& one : run.programs) {
      if (one != nullptr) program = one.get();
    }
    if (program == nullptr) continue;  // this part of its steps is empty
    for (const NamedProbe& probe : program->probes().probes) {
      estimate.set_rows(estimate.rows() + run.logged.count());
      estimate.set_bytes(estimate.bytes() + run.logged.count() * BytesOf(probe, *program));
    }
    v1::ReplayEstimate::Lacking names;
    names.set_run(run.name());
    for (const auto& [probe, why] : program->probes().lacking) {
      names.add_log(probe);
      lacking[probe] = std::string(why.message());
    }
    for (const ProbeExpression& probe : *probes) {
      const std::string text = ToString(probe);
      if (std::find(names.log().begin(), names.log().end(), text) == names.log().end()) {
        found.insert(text);
      }
    }
    if (!names.log().empty()) *estimate.add_lacking() = std::move(names);
    for (const SegmentCut& cut : cuts) {
      v1::ReplaySegment& segment = *estimate.add_segments();
      segment.set_job_id(job_id);
      segment.set_checkpoint_step(cut.checkpoint);
      segment.set_first_step(cut.logged.first);
      segment.set_end_step(cut.logged.end);
      segment.set_state(v1::REPLAY_WAITING);
      estimate.set_steps(estimate.steps() + cut.steps());
      const double seconds =
          request.load_seconds + static_cast<double>(cut.steps()) * request.step_seconds;
      loading += request.load_seconds;
      all_seconds += seconds * static_cast<double>(ranks);
      longest = std::max(longest, seconds);
    }
    estimate.set_logged_steps(estimate.logged_steps() + run.logged.count());
  }
  if (planned.runs.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("none of these runs can be replayed: ",
                                                      absl::StrJoin(estimate.notes(), "; ")));
  }
  for (const auto& [probe, why] : lacking) {
    // Of what a wildcard matches, some may be missing.
    if (asked.contains(probe) && !found.contains(probe)) {
      return absl::NotFoundError(absl::StrCat("log: ", probe, ": ", why));
    }
  }
  estimate.set_loading_seconds(loading / most_workers);
  estimate.set_seconds(std::max(longest, all_seconds / most_workers));
  return planned;
}

}  // namespace espalier
