// What the jobs of JobRunner go on from: their checkpoints, and the validations up to them.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/states.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/jobs/job_message.h"
#include "server/jobs/job_runner.h"

namespace espalier {
namespace {

// Sets what the record says of the best validation.
void SetBest(const ValidationHistory& validations, v1::Job* job) {
  job->set_best_step(validations.best_steps());
  job->clear_best_validation();
  if (validations.best() != nullptr) {
    *job->mutable_best_validation() = validations.best()->values();
  }
}

}  // namespace

absl::Status JobRunner::LoadValidations(Job* job) const {
  const v1::Job& record = job->record.job;
  // A job that has succeeded does not go on.
  if (!record.spec().has_validation() || record.state() == v1::SUCCEEDED) return absl::OkStatus();
  absl::StatusOr<std::vector<v1::StepReport>> stored = store_->Validations(record.id());
  if (!stored.ok()) return stored.status();
  job->validations = ValidationHistory(record.spec().early_stopping());
  for (const v1::StepReport& report : *stored) job->validations.Add(report);
  return absl::OkStatus();
}

void JobRunner::RollBack(Job* job) {
  const int64_t step = job->life.checkpoint_step;
  for (auto* reports : {&job->pending.reports, &job->pending.validations}) {
    reports->erase(std::remove_if(reports->begin(), reports->end(),
                                  [&](const v1::StepReport& r) { return r.step() >= step; }),
                   reports->end());
  }
  job->pending.drop_reports_from = step;
  job->validations.DropFrom(step);
  SetBest(job->validations, &job->record.job);
  recent_tensors_.DropFrom(job->record.job.id(), step);
  job->record.job.set_steps_done(step);
  if (job->stream != nullptr) job->stream->SetStepsDone(step);
  job->step_seconds.clear();
}

void JobRunner::OnValidation(const std::string& job_id, int32_t attempt,
                             const v1::StepReport& validation) {
  metrics_->JobValidation(validation.seconds());
  absl::MutexLock lock(&mutex_);
  Job& job = *jobs_.at(job_id);
  if (attempt != job.life.attempts || IsOver(job.life.state)) return;
  job.pending.validations.push_back(validation);
  job.validations.Add(validation);
  SetBest(job.validations, &job.record.job);
  MarkDirty(&job);
}

void JobRunner::OnCheckpoint(const std::string& job_id, int32_t attempt,
                             const StoredCheckpoint& checkpoint) {
  std::string previous;
  int64_t best_steps = 0;
  bool recorded = false;
  {
    absl::MutexLock lock(&mutex_);
    Job& job = *jobs_.at(job_id);
    recorded = IsRecordedHere(job);
    if (attempt != job.life.attempts || IsOver(job.life.state)) return;
    const int64_t before = job.life.checkpoint_step;
    const JobLifecycleEvent event{.kind = JobEventKind::kCheckpointed,
                                  .attempt = attempt,
                                  .step = checkpoint.steps_done,
                                  .reason = ""};
    Apply(&job, event).IgnoreError();
    // Ignored if, for example, the job was cancelled and resumed while it was written. Folder and
    // step must change together.
    if (job.life.checkpoint_step == before) return;
    previous = std::exchange(job.record.checkpoint_dir, checkpoint.within_job);
    best_steps = job.validations.kept_steps();
    cut_off_.Remove(job.attempt->members());
    SetCheckpointsPaused(&job, "");
    MarkDirty(&job);
    const std::optional<std::string> moves = WhyItMoves(job);
    if (moves.has_value()) job.pending.messages.push_back(InfoMessage(*moves));
    // The loop retries; the older ones stay until the next.
    if (!Flush(&job).ok()) return;
    metrics_->CheckpointWritten();
    if (moves.has_value() && job.life.attempts == attempt) Move(&job);
  }
  if (recorded) {
    if (tools_.spool != nullptr) tools_.spool->Changed(job_id);
    ThinRecording(job_id, Thinning::kToLimits, "");
  } else {
    RemoveOlderCheckpoints(*tools_.checkpoints, job_id, checkpoint, previous, best_steps);
  }
}

void JobRunner::OnCheckpointSkipped(const std::string& job_id, int32_t attempt,
                                    const std::string& reason) {
  metrics_->CheckpointSkipped();
  const auto is_current = [&] {
    mutex_.AssertHeld();
    const Job& job = *jobs_.at(job_id);
    return attempt == job.life.attempts && !IsOver(job.life.state);
  };
  {
    absl::MutexLock lock(&mutex_);
    if (!is_current()) return;
  }
  if (ThinForRoom(job_id)) return;  // the next period tries again
  absl::MutexLock lock(&mutex_);
  if (is_current()) SetCheckpointsPaused(jobs_.at(job_id).get(), reason);
}

absl::Status JobRunner::Checkpoint(const v1::CheckpointRequest& request,
                                   const std::function<bool()>& cancelled,
                                   v1::CheckpointReply* reply) {
  constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<Job*> job = Find(request.job_id());
  if (!job.ok()) return job.status();
  const auto over = [&] {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", request.job_id(), " is ", StateName((*job)->life.state),
                     ": it trains nothing that a checkpoint could save"));
  };
  if (IsOver((*job)->life.state)) return over();
  const int64_t wanted = (*job)->record.job.steps_done();
  const int32_t attempt = (*job)->life.attempts;
  const std::string paused = (*job)->record.job.checkpoints_paused();
  bool asked = false;
  while ((*job)->life.checkpoint_step < wanted) {
    if (stopping_) return absl::UnavailableError("the coordinator is going down");
    if (cancelled()) return absl::CancelledError("the caller has gone");
    if (IsOver((*job)->life.state)) return over();
    const v1::Job& record = (*job)->record.job;
    if ((*job)->life.attempts != attempt || (*job)->attempt == nullptr || (*job)->attempt_over) {
      return absl::FailedPreconditionError(absl::StrCat(
          "job ", record.id(), " has been interrupted and goes on from its checkpoint of step ",
          (*job)->life.checkpoint_step, "; try again once it runs"));
    }
    if (!record.checkpoints_paused().empty() && record.checkpoints_paused() != paused) {
      return absl::ResourceExhaustedError(record.checkpoints_paused());
    }
    if (!asked) (*job)->attempt->RequestCheckpoint();
    asked = true;
    published_.WaitWithTimeout(&mutex_, kLookAgain);
    job = Find(request.job_id());  // it may have been deleted
    if (!job.ok()) return job.status();
  }
  *reply->mutable_job() = (*job)->record.job;
  reply->mutable_job()->clear_plan();
  return Flush(*job);
}

void JobRunner::SetCheckpointsPaused(Job* job, const std::string& reason) {
  v1::Job& record = job->record.job;
  if (record.checkpoints_paused().empty() != reason.empty()) {
    const v1::JobMessage message =
        reason.empty()
            ? InfoMessage(absl::StrCat("there is room again: checkpoint of step ",
                                       record.checkpoint_step()))
            : WarningMessage(absl::StrCat("checkpoints are paused, the last one is of step ",
                                          record.checkpoint_step(), "; ", reason));
    spdlog::warn("job id={}: {}", record.id(), absl::CHexEscape(message.text()));
    job->pending.messages.push_back(message);
  }
  record.set_checkpoints_paused(reason);
  MarkDirty(job);
  Settle(job);
}

}  // namespace espalier
