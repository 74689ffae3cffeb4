#include "worker/trainer/checkpoint_observer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"

namespace espalier {

int64_t RequestedCheckpoints::Add(int64_t steps_done) {
  absl::MutexLock lock(&mutex_);
  if (steps_done > done_) wanted_.insert(steps_done);
  return done_;
}

bool RequestedCheckpoints::Take(int64_t steps_done) {
  absl::MutexLock lock(&mutex_);
  done_ = steps_done;
  const bool wanted = wanted_.count(steps_done) != 0;
  wanted_.erase(wanted_.begin(), wanted_.upper_bound(steps_done));
  return wanted;
}

CheckpointObserver::CheckpointObserver(CheckpointOptions options) : options_(std::move(options)) {}

absl::Status CheckpointObserver::OnRunBegin(TrainingRun& run) {
  if (options_.root.empty()) return absl::OkStatus();
  options_.writer->Prepare();
  return options_.at_begin ? BeginShard(run, run.begin()) : EmitFinished(run);
}

absl::Status CheckpointObserver::OnStepReported(TrainingRun& run, int64_t step,
                                                const StepReports&) {
  const int64_t done = step + 1;
  const int64_t every = options_.every_steps;
  const bool requested = options_.requested != nullptr && options_.requested->Take(done);
  const bool due =
      requested || (!options_.goes_on && done == run.end()) || (every > 0 && done % every == 0);
  if (due && !options_.root.empty()) return BeginShard(run, done);
  return EmitFinished(run);
}

absl::Status CheckpointObserver::OnEvaluation(TrainingRun& run, const v1::StepReport&) {
  return EmitFinished(run);
}

absl::Status CheckpointObserver::OnRunEnd(TrainingRun& run) {
  return options_.goes_on ? EmitFinished(run) : EmitShard(run);
}

void CheckpointObserver::OnRunFailed(TrainingRun&, const absl::Status&) {
  options_.writer->Abandon();
}

absl::Status CheckpointObserver::BeginShard(TrainingRun& run, int64_t steps_done) {
  const bool is_begun = options_.writer->busy() && options_.writer->steps_done() == steps_done;
  if (absl::Status s = EmitShard(run); !s.ok()) return s;
  if (is_begun) return absl::OkStatus();
  // One directory per attempt, so that a stale attempt cannot overwrite a newer one's files.
  const std::string directory =
      JoinPath(options_.root, absl::StrCat("step-", steps_done, "-attempt-", options_.attempt));
  return options_.writer->Begin(directory, steps_done);
}

absl::Status CheckpointObserver::EmitFinished(TrainingRun& run) {
  return options_.writer->finished() ? EmitShard(run) : absl::OkStatus();
}

absl::Status CheckpointObserver::EmitShard(TrainingRun& run) {
  if (!options_.writer->busy()) return absl::OkStatus();
  absl::StatusOr<v1::CheckpointShard> shard = options_.writer->Take();
  if (!shard.ok()) return shard.status();
  v1::RunEvent event;
  *event.mutable_shard() = *std::move(shard);
  return run.Emit(event);
}

}  // namespace espalier
