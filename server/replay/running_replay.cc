#include "server/replay/running_replay.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/jobs/training_dataset.h"
#include "server/recordings/fetched_checkpoint.h"
#include "server/replay/evaluation_segment.h"
#include "server/replay/replayed_segment.h"
#include "server/replay/state_segment.h"

namespace espalier {
namespace {

constexpr absl::Duration kReplayTick = absl::Milliseconds(100);
// So often a segment may lose its workers in a row without progress.
constexpr int kMostFailures = 3;

// The checkpoint at which the training of `step` can begin.
int64_t LastCheckpoint(const std::vector<int64_t>& checkpoints, int64_t step) {
  const auto after = std::upper_bound(checkpoints.begin(), checkpoints.end(), step);
  return after == checkpoints.begin() ? 0 : *std::prev(after);
}

std::string DescribeDevices(const v1::Plan& plan) {
  std::map<std::string, int> models;
  for (const v1::Device& device : plan.devices()) ++models[device.model()];
  return absl::StrJoin(models, " and ", [](std::string* out, const auto& model) {
    absl::StrAppend(out, model.second, " x '", model.first, "'");
  });
}

absl::Status Within(const ReplayedRun& run, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(run.name(), ": ", status.message()));
}

v1::ReplaySpec WholeSpec(const v1::StoredReplay& replay) {
  v1::ReplaySpec spec = replay.info().spec();
  if (!replay.graphs().empty()) *spec.mutable_graphs() = replay.graphs();
  return spec;
}

}  // namespace

std::vector<Member> MatchWorkers(const v1::Plan& plan, std::vector<Member> idle) {
  std::vector<Member> members;
  for (const v1::Device& planned : plan.devices()) {
    const auto found = std::find_if(idle.begin(), idle.end(), [&](const Member& member) {
      return member.device.kind() == planned.kind() && member.device.model() == planned.model() &&
             member.device.memory_bytes() >= planned.memory_bytes();
    });
    if (found == idle.end()) return {};
    members.push_back(std::move(*found));
    idle.erase(found);
  }
  return members;
}

SegmentCut LeftOf(const SegmentCut& cut, int64_t answered,
                  const std::vector<int64_t>& checkpoints) {
  SegmentCut left = cut;
  if (answered >= cut.logged.first) {
    left.logged.first += ((answered - cut.logged.first) / cut.logged.every + 1) * cut.logged.every;
  }
  left.checkpoint = LastCheckpoint(checkpoints, left.logged.first);
  return left;
}

RunningReplay::RunningReplay(const ReplayTools& tools, v1::StoredReplay replay,
                             std::unique_ptr<PlannedReplay> planned, Publish publish)
    : tools_(tools),
      spec_(WholeSpec(replay)),
      job_ids_(replay.job_ids().begin(), replay.job_ids().end()),
      publish_(std::move(publish)),
      planned_(std::move(planned)),
      info_(std::move(*replay.mutable_info())) {}

RunningReplay::~RunningReplay() { Stop(); }

void RunningReplay::Start() {
  driver_ = std::thread([this] { Drive(); });
}

void RunningReplay::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (locating_ != nullptr) locating_->Cancel();
  changed_.SignalAll();
}

void RunningReplay::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    if (locating_ != nullptr) locating_->Cancel();
    changed_.SignalAll();
  }
  if (driver_.joinable()) driver_.join();
}

void RunningReplay::Note(const std::string& note) {
  if (std::find(info_.notes().begin(), info_.notes().end(), note) != info_.notes().end()) return;
  info_.add_notes(note);
  publish_(info_, /*durable=*/true);
}

void RunningReplay::SumRows() {
  int64_t rows = 0;
  for (const auto& segment : segments_) rows += segment->rows + segment->progress.stored_rows;
  info_.set_rows(rows);
}

void RunningReplay::RemoveFetched() {
  if (tools_.attempts->spool == nullptr) return;
  std::string replay_id;
  {
    absl::MutexLock lock(&mutex_);
    replay_id = info_.id();
  }
  for (const std::string& job_id : job_ids_) {
    const absl::Status removed =
        FetchedCheckpoint::RemoveLeft(*tools_.attempts->checkpoints, job_id, replay_id);
    if (!removed.ok()) spdlog::warn("replay id={}: {}", replay_id, removed.ToString());
  }
}

void RunningReplay::Finish(v1::ReplayState state, const std::string& error) {
  RemoveFetched();
  absl::MutexLock lock(&mutex_);
  info_.set_state(state);
  info_.set_error(error);
  info_.set_finished_unix_ms(tools_.clock->NowUnixMillis());
  for (v1::ReplaySegment& segment : *info_.mutable_segments()) {
    if (segment.state() == v1::REPLAY_WAITING || segment.state() == v1::REPLAY_RUNNING) {
      segment.set_state(v1::REPLAY_CANCELLED);
    }
    segment.clear_workers();
  }
  publish_(info_, /*durable=*/true);
}

absl::Status RunningReplay::Prepare() {
  if (planned_ == nullptr) {
    absl::StatusOr<PlannedReplay> planned = tools_.planner->Plan(spec_, job_ids_);
    if (!planned.ok()) return planned.status();
    planned_ = std::make_unique<PlannedReplay>(*std::move(planned));
  }
  std::vector<std::unique_ptr<Segment>> segments;
  {
    absl::MutexLock lock(&mutex_);
    for (v1::ReplaySegment& known : *info_.mutable_segments()) {
      Segment& segment = *segments.emplace_back(std::make_unique<Segment>());
      for (ReplayedRun& run : planned_->runs) {
        if (run.job_id == known.job_id()) segment.run = &run;
      }
      segment.kind = known.kind();
      segment.cut = {known.checkpoint_step(),
                     {known.first_step(), known.end_step(), std::max<int64_t>(1, spec_.every())}};
      if (known.state() == v1::REPLAY_SUCCEEDED) segment.phase = Phase::kOver;
      if (known.state() == v1::REPLAY_RUNNING) known.set_state(v1::REPLAY_WAITING);
    }
    segments_ = std::move(segments);
  }
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (absl::Status s = FindLeft(i); !s.ok()) return s;
  }
  return CheckData();
}

absl::Status RunningReplay::CheckData() {
  const bool reads_data =
      !spec_.at_checkpoints() || (spec_.evaluate_holdout() && !spec_.has_evaluate());
  for (const ReplayedRun& run : planned_->runs) {
    const v1::Recording& recording = run.recording;
    if (!reads_data) continue;
    if (recording.dataset_sha256().empty()) {
      absl::MutexLock lock(&mutex_);
      Note(absl::StrCat(run.name(),
                        ": the recording has no hash of its data, so nobody can tell whether it is "
                        "the same now, unless a loss differs"));
    } else {
      const absl::StatusOr<std::string> now =
          DigestDataset(run.spec.dataset(), *tools_.attempts->artifacts,
                        *tools_.attempts->dataset_roots, [this] { return interrupted(); });
      if (!now.ok()) return Within(run, now.status());
      if (*now != recording.dataset_sha256()) {
        return absl::FailedPreconditionError(absl::StrCat(
            run.name(), ": dataset: what is there now has the SHA-256 ", now->substr(0, 12),
            "..., what the run was trained on had ", recording.dataset_sha256().substr(0, 12),
            "...: bring the former data back to replay it"));
      }
    }
    const v1::TrainingSpec& spec = run.spec;
    if (spec.has_graph() || recording.graph_sha256().empty()) continue;
    const std::string& model =
        spec.onnx_artifact().empty() ? spec.init_artifact() : spec.onnx_artifact();
    const absl::StatusOr<v1::Artifact> artifact = tools_.attempts->artifacts->Find(model);
    if (!artifact.ok()) return Within(run, artifact.status());
    if (artifact->sha256() != recording.graph_sha256()) {
      return absl::FailedPreconditionError(
          absl::StrCat(run.name(), ": the model '", model,
                       "' is not the one that the run was trained from: their hashes differ"));
    }
  }
  return absl::OkStatus();
}

std::vector<int64_t> RunningReplay::UsableCheckpoints(const ReplayedRun& run) const {
  std::vector<int64_t> usable;
  for (const int64_t checkpoint : run.checkpoints()) {
    if (!damaged_.contains({run.job_id, checkpoint})) usable.push_back(checkpoint);
  }
  return usable;
}

absl::Status RunningReplay::FindLeft(size_t number) {
  std::string replay_id;
  Segment* segment = nullptr;
  SegmentCut whole;
  {
    absl::MutexLock lock(&mutex_);
    replay_id = info_.id();
    segment = segments_[number].get();
    const v1::ReplaySegment& known = info_.segments(static_cast<int>(number));
    whole = {known.checkpoint_step(),
             {known.first_step(), known.end_step(), segment->cut.logged.every}};
  }
  const absl::StatusOr<std::vector<AnswerChunk>> chunks =
      tools_.answers->List(segment->run->job_id, replay_id);
  if (!chunks.ok()) return chunks.status();
  int64_t answered = -1, rows = 0;
  for (const AnswerChunk& chunk : *chunks) {
    if (chunk.segment != static_cast<int>(number)) continue;
    const absl::StatusOr<v1::QueryHistoryReply> read =
        tools_.answers->Read(segment->run->job_id, chunk);
    if (!read.ok()) return read.status();
    rows += read->rows_size();
    answered = std::max(answered, chunk.last_step);
  }
  const std::vector<int64_t> usable = UsableCheckpoints(*segment->run);
  const bool trains = segment->kind == v1::ReplaySegment::TRAINING;
  const SegmentCut left = LeftOf(whole, answered, usable);
  std::vector<int64_t> checkpoints;
  {
    absl::MutexLock lock(&mutex_);
    segment->rows = rows;
    segment->progress = {};
    segment->cut = left;
    v1::ReplaySegment& shown = *info_.mutable_segments(static_cast<int>(number));
    if (!trains) {
      checkpoints = segment->run->CheckpointsOf(shown, spec_.every());
      std::erase_if(checkpoints, [&](int64_t steps) {
        return steps <= answered ||
               (steps > 0 && !std::binary_search(usable.begin(), usable.end(), steps));
      });
      segment->checkpoints = checkpoints;
    }
    const bool nothing = trains ? left.logged.count() == 0 : checkpoints.empty();
    if (segment->phase != Phase::kOver && nothing) {
      segment->phase = Phase::kOver;
      shown.set_state(v1::REPLAY_SUCCEEDED);
    }
    SumRows();
  }
  if (!trains) return absl::OkStatus();
  return tools_.planner->AddPrograms(spec_, {left.checkpoint}, segment->run);
}

int64_t RunningReplay::FirstCheckpoint(const Segment& segment) {
  if (segment.kind == v1::ReplaySegment::TRAINING) return segment.cut.checkpoint;
  return segment.checkpoints.empty() ? 0 : segment.checkpoints.front();
}

absl::StatusOr<std::shared_ptr<const ReplayProgram>> RunningReplay::ProgramFor(
    const Segment& segment, size_t most, const std::vector<Member>& idle,
    std::vector<Member>* members) {
  const ReplayedRun& run = *segment.run;
  const bool trains = segment.kind == v1::ReplaySegment::TRAINING;
  std::shared_ptr<const ReplayProgram> recorded =
      trains ? run.programs[run.AttemptAt(segment.cut.checkpoint)] : run.evaluation_program;
  if (recorded != nullptr) *members = MatchWorkers(recorded->plan(), idle);
  if (members->size() > most) members->clear();
  if (!members->empty() || !spec_.any_plan()) return recorded;
  absl::StatusOr<ReplayQuestions> asked = ReplayQuestions();
  if (trains) asked = tools_.planner->Parse(spec_);
  if (!asked.ok()) return asked.status();
  // As few workers as the model fits on, so that as many segments as possible run at once.
  absl::StatusOr<std::shared_ptr<const ReplayProgram>> program =
      absl::ResourceExhaustedError("no worker is idle");
  for (size_t count = 1; count <= std::min(most, idle.size()); count *= 2) {
    std::vector<v1::Device> devices;
    std::string key = absl::StrCat(run.job_id, trains ? "" : " evaluation");
    for (size_t i = 0; i < count; ++i) {
      devices.push_back(idle[i].device);
      absl::StrAppend(&key, "\n", devices.back().model(), " ", devices.back().memory_bytes());
    }
    if (const auto known = other_plans_.find(key); known != other_plans_.end()) {
      program = known->second;
    } else {
      program = tools_.planner->PlanFor(trains ? run.spec : *run.evaluated, *asked, devices);
    }
    if (program.ok()) {
      other_plans_[key] = *program;
      members->assign(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(count));
      return program;
    }
    if (!absl::IsResourceExhausted(program.status())) return program;
  }
  return program;
}

std::unique_ptr<SegmentWork> RunningReplay::MakeWork(size_t number,
                                                     std::shared_ptr<const ReplayProgram> program,
                                                     const std::vector<Member>& members) {
  std::string replay_id;
  Segment* segment = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    replay_id = info_.id();
    segment = segments_[number].get();
  }
  auto on_progress = [this, segment, number](const SegmentProgress& progress) {
    absl::MutexLock lock(&mutex_);
    segment->progress = progress;
    v1::ReplaySegment& shown = *info_.mutable_segments(static_cast<int>(number));
    shown.set_steps_done(progress.steps_done);
    if (segment->kind == v1::ReplaySegment::TRAINING) {
      *shown.mutable_comparison() = progress.comparison;
      shown.mutable_comparison()->set_compared(segment->compared + progress.comparison.compared());
    } else {
      // Those that this try found done count, too.
      const auto left = static_cast<int64_t>(segment->checkpoints.size());
      shown.set_steps_done(shown.checkpoints() - left + progress.steps_done);
    }
    SumRows();
    publish_(info_, /*durable=*/false);
  };
  if (segment->kind == v1::ReplaySegment::TRAINING) {
    ReplayedSegmentTask task;
    task.replay_id = replay_id;
    task.number = static_cast<int>(number);
    task.run = segment->run;
    task.program = std::move(program);
    task.cut = segment->cut;
    task.members = members;
    return std::make_unique<ReplayedSegment>(tools_, std::move(task), std::move(on_progress));
  }
  CheckpointSegmentTask task;
  task.replay_id = replay_id;
  task.number = static_cast<int>(number);
  task.run = segment->run;
  task.checkpoints = segment->checkpoints;
  if (segment->kind == v1::ReplaySegment::STATE) {
    task.probes = segment->run->state_questions.probes;
    task.fragments = segment->run->state_questions.fragments;
    return std::make_unique<StateSegment>(tools_, std::move(task), std::move(program),
                                          std::move(on_progress));
  }
  task.probes = segment->run->evaluation_probes;
  return std::make_unique<EvaluationSegment>(tools_, std::move(task), segment->run->evaluated,
                                             std::move(program), members, std::move(on_progress));
}

absl::StatusOr<std::string> RunningReplay::StartSegment(size_t number, size_t most,
                                                        std::vector<Member>* idle) {
  Segment* segment = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    segment = segments_[number].get();
  }
  std::vector<Member> members;
  absl::StatusOr<std::shared_ptr<const ReplayProgram>> program = segment->run->state_program;
  if (segment->kind != v1::ReplaySegment::STATE) {
    program = ProgramFor(*segment, most, *idle, &members);
    if (absl::IsResourceExhausted(program.status())) {
      return absl::StrCat("waits for workers: ", program.status().message());
    }
    if (!program.ok()) return Within(*segment->run, program.status());
    if (members.empty()) {
      return absl::StrCat("waits for idle workers like those of the recording, ",
                          DescribeDevices((*program)->plan()),
                          "; --any-plan replays on others, within a tolerance");
    }
  }
  std::erase_if(*idle, [&](const Member& member) {
    return std::any_of(members.begin(), members.end(), [&](const Member& taken) {
      return taken.lease.worker_id() == member.lease.worker_id();
    });
  });
  std::unique_ptr<SegmentWork> work = MakeWork(number, *program, members);
  absl::MutexLock lock(&mutex_);
  segment->phase = Phase::kRunning;
  segment->ended = false;
  segment->progress = {};
  segment->members = members;
  segment->work = std::move(work);
  segment->thread = std::thread([this, segment] {
    const absl::Status status = segment->work->Run();
    absl::MutexLock ended(&mutex_);
    segment->status = status;
    segment->ended = true;
    changed_.SignalAll();
  });
  info_.set_state(v1::REPLAY_RUNNING);
  v1::ReplaySegment& shown = *info_.mutable_segments(static_cast<int>(number));
  shown.set_state(v1::REPLAY_RUNNING);
  shown.set_checkpoint_step(FirstCheckpoint(*segment));
  shown.clear_workers();
  for (const Member& member : members) shown.add_workers(member.lease.worker_id());
  publish_(info_, /*durable=*/true);
  return "";
}

void RunningReplay::StartWhatCan() {
  std::vector<size_t> waiting;
  size_t in_use = 0, most = SIZE_MAX;
  {
    absl::MutexLock lock(&mutex_);
    if (info_.has_difference()) return;
    for (size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i]->phase == Phase::kWaiting) waiting.push_back(i);
      if (segments_[i]->phase == Phase::kRunning) in_use += segments_[i]->members.size();
    }
    if (spec_.max_workers() > 0) most = static_cast<size_t>(spec_.max_workers());
  }
  std::vector<Member> idle = tools_.attempts->workers->Idle();
  for (const size_t number : waiting) {
    const size_t before = idle.size();
    const absl::StatusOr<std::string> missing =
        StartSegment(number, most > in_use ? most - in_use : 0, &idle);
    in_use += before - idle.size();
    absl::MutexLock lock(&mutex_);
    if (!missing.ok()) {
      segments_[number]->status = missing.status();
      segments_[number]->ended = true;
      segments_[number]->phase = Phase::kRunning;  // its result is taken
    } else if (!missing->empty() && in_use == 0) {
      Note(*missing);
    }
  }
}

absl::Status RunningReplay::TakeResult(size_t number) {
  Segment* segment = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    segment = segments_[number].get();
  }
  if (segment->thread.joinable()) segment->thread.join();
  const std::unique_ptr<SegmentWork> work = std::move(segment->work);
  const absl::Status status = segment->status;
  bool progress = false;
  {
    absl::MutexLock lock(&mutex_);
    v1::ReplaySegment& shown = *info_.mutable_segments(static_cast<int>(number));
    shown.clear_workers();
    segment->compared += segment->progress.comparison.compared();
    progress = segment->progress.stored_rows > 0;
    if (status.ok()) {
      segment->phase = Phase::kOver;
      shown.set_state(v1::REPLAY_SUCCEEDED);
    } else if (const auto differs = work == nullptr ? std::nullopt : work->difference();
               differs.has_value()) {
      segment->phase = Phase::kOver;
      shown.set_state(v1::REPLAY_DIFFERS);
      if (!info_.has_difference() || differs->step() < info_.difference().step()) {
        *info_.mutable_difference() = *differs;
        info_.mutable_difference()->set_job_id(segment->run->job_id);
      }
    } else {
      segment->phase = Phase::kWaiting;
      shown.set_state(v1::REPLAY_WAITING);
    }
    publish_(info_, /*durable=*/true);
    if (segment->phase == Phase::kOver || stop_ || cancelled_) return absl::OkStatus();
    if (info_.has_difference()) {
      // Only what comes before the difference matters.
      segment->phase = Phase::kOver;
      shown.set_state(v1::REPLAY_CANCELLED);
      return absl::IsCancelled(status) ? absl::OkStatus() : Within(*segment->run, status);
    }
  }
  if (absl::IsAborted(status)) return FindLeft(number);  // somebody else has taken the worker
  if (absl::IsUnavailable(status)) {
    segment->failures = progress ? 1 : segment->failures + 1;
    if (segment->failures > kMostFailures) {
      return Within(*segment->run,
                    absl::Status(status.code(), absl::StrCat(status.message(), ", after ",
                                                             kMostFailures, " other failures")));
    }
    if (absl::Status s = FindLeft(number); !s.ok()) return s;
    absl::MutexLock lock(&mutex_);
    Note(absl::StrCat(segment->run->name(), ": ", status.message(), "; it goes on from step ",
                      FirstCheckpoint(*segment)));
    return absl::OkStatus();
  }
  if (segment->kind != v1::ReplaySegment::TRAINING) {
    // The first that is left is the one that could not be read.
    if (absl::Status s = FindLeft(number); !s.ok()) return s;
  }
  return Within(*segment->run, ReplaceCheckpoint(number, status));
}

void RunningReplay::CancelNeedless() {
  const bool all = stop_ || cancelled_;
  if (!all && !info_.has_difference()) return;
  for (size_t i = 0; i < segments_.size(); ++i) {
    Segment& segment = *segments_[i];
    const bool before = !all && segment.run->job_id == info_.difference().job_id() &&
                        segment.cut.checkpoint <= info_.difference().step();
    if (segment.phase == Phase::kRunning && !before && segment.work != nullptr) {
      segment.work->Cancel();
    }
    if (segment.phase == Phase::kWaiting && !all) segment.phase = Phase::kOver;
  }
}

void RunningReplay::Drive() {
  absl::Status failed = Prepare();
  while (true) {
    std::vector<size_t> ended;
    bool waiting = false, running = false, interrupted = false;
    {
      absl::MutexLock lock(&mutex_);
      interrupted = stop_ || cancelled_;
      if (!failed.ok()) {
        for (const auto& segment : segments_) {
          if (segment->phase == Phase::kRunning && segment->work != nullptr) {
            segment->work->Cancel();
          }
        }
      }
      CancelNeedless();
      for (size_t i = 0; i < segments_.size(); ++i) {
        const Segment& segment = *segments_[i];
        if (segment.phase == Phase::kRunning && segment.ended) ended.push_back(i);
        running = running || segment.phase == Phase::kRunning;
        waiting = waiting || segment.phase == Phase::kWaiting;
      }
    }
    for (const size_t number : ended) {
      const absl::Status status = TakeResult(number);
      if (failed.ok()) failed = status;
    }
    if (!ended.empty()) continue;
    if (!running && (!waiting || interrupted || !failed.ok())) break;
    if (waiting && !interrupted && failed.ok()) StartWhatCan();
    absl::MutexLock lock(&mutex_);
    changed_.WaitWithTimeout(&mutex_, kReplayTick);
  }
  Locate();
  bool differs = false, cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    // They refer to programs and recordings, which may be large.
    segments_.clear();
    planned_.reset();
    other_plans_.clear();
    if (stop_ && !cancelled_) return;
    cancelled = cancelled_;
    differs = info_.has_difference();
  }
  if (differs) {
    Finish(v1::REPLAY_DIFFERS, "");
  } else if (cancelled) {
    Finish(v1::REPLAY_CANCELLED, "");
  } else if (!failed.ok()) {
    Finish(v1::REPLAY_FAILED, std::string(failed.message()));
  } else {
    Finish(v1::REPLAY_SUCCEEDED, "");
  }
}

}  // namespace espalier
