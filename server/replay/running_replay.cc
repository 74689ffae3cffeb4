#include "server/replay/running_replay.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/jobs/training_dataset.h"
#include "server/recordings/fetched_checkpoint.h"
#include "server/replay/loss_check.h"

namespace espalier {
namespace {

constexpr absl::Duration kReplayTick = absl::Milliseconds(100);
// So often a segment may lose its workers in a row without progress.
constexpr int kMostFailures = 3;
// Begins the note that says so.
constexpr absl::string_view kWaitsFor = "waits for ";

// The checkpoint at which the training of `step` can begin.
int64_t LastCheckpoint(const std::vector<int64_t>& checkpoints, int64_t step) {
  const auto after = std::upper_bound(checkpoints.begin(), checkpoints.end(), step);
  return after == checkpoints.begin() ? 0 : *std::prev(after);
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

void RunningReplay::NoteWaiting(const std::string& what) {
  const std::string note = what.empty() ? "" : absl::StrCat(kWaitsFor, what);
  auto& notes = *info_.mutable_notes();
  const auto others = std::remove_if(notes.begin(), notes.end(), [&](const std::string& other) {
    return other != note && absl::StartsWith(other, kWaitsFor);
  });
  const bool over = others != notes.end();
  notes.erase(others, notes.end());
  if (!note.empty()) Note(note);
  if (over) publish_(info_, /*durable=*/true);
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
      segment.done_before = known.checkpoint_step() + known.steps_done();
      segment.compared = known.comparison();
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
    if (!unreadable_.contains({run.job_id, checkpoint})) usable.push_back(checkpoint);
  }
  return usable;
}

void RunningReplay::AddTry(Segment* segment) {
  segment->done_before =
      std::max(segment->done_before, segment->cut.checkpoint + segment->progress.steps_done);
  segment->compared = BothOf(segment->compared, segment->progress.comparison);
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
      // A spool may be used that was not when it was planned.
      shown.set_checkpoints(
          std::max(shown.checkpoints(), static_cast<int64_t>(checkpoints.size())));
      std::erase_if(checkpoints, [&](int64_t steps) {
        return steps <= answered ||
               (steps > 0 && !std::binary_search(usable.begin(), usable.end(), steps));
      });
      segment->checkpoints = checkpoints;
      shown.set_steps_done(shown.checkpoints() - static_cast<int64_t>(checkpoints.size()));
    } else {
      // It stays the segment that it was, unless it has to begin earlier, where nothing is done.
      if (left.checkpoint < shown.checkpoint_step()) {
        shown.set_checkpoint_step(left.checkpoint);
        segment->done_before = left.checkpoint;
        segment->compared.Clear();
      }
      const int64_t done = std::max(segment->done_before, left.checkpoint);
      shown.set_steps_done(std::min(done, shown.end_step()) - shown.checkpoint_step());
      *shown.mutable_comparison() = segment->compared;
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
    if (segment->kind == v1::ReplaySegment::TRAINING) AddTry(segment);
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
      if (status.ok()) continue;
      if (failed.ok()) failed = status;
      absl::MutexLock lock(&mutex_);
      if (stop_ || cancelled_ || absl::IsCancelled(status)) continue;
      segments_[number]->phase = Phase::kOver;
      info_.mutable_segments(static_cast<int>(number))->set_state(v1::REPLAY_FAILED);
    }
    if (!ended.empty()) continue;
    if (!running && (!waiting || interrupted || !failed.ok())) break;
    if (waiting && !interrupted && failed.ok()) StartWhatCan();
    absl::MutexLock lock(&mutex_);
    changed_.WaitWithTimeout(&mutex_, kReplayTick);
  }
  Locate();
  bool differs = false, cancelled = false;
  int64_t answers = 0;
  {
    absl::MutexLock lock(&mutex_);
    // They refer to programs and recordings, which may be large.
    segments_.clear();
    planned_.reset();
    other_plans_.clear();
    if (stop_ && !cancelled_) return;
    cancelled = cancelled_;
    differs = info_.has_difference();
    answers = info_.rows();
  }
  if (differs) {
    Finish(v1::REPLAY_DIFFERS, "");
  } else if (cancelled) {
    Finish(v1::REPLAY_CANCELLED, "");
  } else if (!failed.ok()) {
    Finish(v1::REPLAY_FAILED, std::string(failed.message()));
  } else if (spec_.at_checkpoints() && answers == 0 && !unreadable_.empty()) {
    Finish(v1::REPLAY_FAILED, "none of the checkpoints that were asked for can be read; see notes");
  } else {
    Finish(v1::REPLAY_SUCCEEDED, "");
  }
}

}  // namespace espalier
