#include "server/jobs/job_lifecycle.h"

#include "absl/strings/str_cat.h"
#include "proto/states.h"
#include "server/jobs/job_message.h"

namespace espalier {
namespace {

// Ends an attempt, in whatever state the job is by now.
void EndAttempt(JobDecision* decision) {
  decision->life.attempt_running = false;
  decision->actions.push_back(JobAction::kReleaseWorkers);
}

// `before`: the step of the checkpoint that the job had.
void Lose(const std::string& reason, int64_t before, const JobPolicy& policy,
          JobDecision* decision) {
  JobLifecycle& life = decision->life;
  if (life.attempt_progressed) {
    life.attempts_without_progress = 0;
    life.failures.clear();
  }
  ++life.attempts_without_progress;
  absl::StrAppend(&life.failures, life.failures.empty() ? "" : "\n", "attempt ", life.attempts,
                  ": ", reason);
  if (life.attempts_without_progress >= policy.max_attempts_without_progress) {
    life.state = v1::FAILED;
    decision->error = absl::StrCat("given up after ", life.attempts_without_progress,
                                   " attempts without progress beyond step ", life.checkpoint_step,
                                   "; resume the job once the workers are sound\n", life.failures);
    decision->message = InfoMessage("given up");
    return;
  }
  life.state = v1::RECOVERING;
  decision->message =
      WarningMessage(life.checkpoint_step > before
                         ? absl::StrCat(reason, "; going on from step ", life.checkpoint_step,
                                        ", without the reports before it")
                     : life.checkpoint_step > 0
                         ? absl::StrCat(reason, "; going back to step ", life.checkpoint_step)
                         : absl::StrCat(reason, "; starting again"));
}

}  // namespace

bool IsActive(v1::JobState state) {
  return state == v1::PLANNING || state == v1::RUNNING || state == v1::RECOVERING;
}

absl::StatusOr<JobDecision> Decide(const JobLifecycle& life, const JobLifecycleEvent& event,
                                   const JobPolicy& policy) {
  JobDecision decision;
  decision.life = life;
  JobLifecycle& next = decision.life;
  const bool present = life.attempt_running && event.attempt == life.attempts;
  const bool counts = present && IsActive(life.state);

  switch (event.kind) {
    case JobEventKind::kWorkersReady:
      if ((life.state != v1::QUEUED && life.state != v1::RECOVERING) || life.attempt_running) {
        return decision;
      }
      if (life.state == v1::QUEUED) next.state = v1::PLANNING;
      next.attempt_running = true;
      next.attempt_progressed = false;
      ++next.attempts;
      decision.actions = {JobAction::kRollBack, JobAction::kStartAttempt};
      return decision;

    case JobEventKind::kRunning:
      if (counts) next.state = v1::RUNNING;
      return decision;

    case JobEventKind::kCheckpointed:
      if (counts && event.step > life.checkpoint_step) {
        next.checkpoint_step = event.step;
        next.attempt_progressed = true;
      }
      return decision;

    case JobEventKind::kWorkersLost:
      if (present) EndAttempt(&decision);
      if (counts) Lose(event.reason, life.checkpoint_step, policy, &decision);
      return decision;

    case JobEventKind::kDamaged:
      if (present) EndAttempt(&decision);
      if (counts) {
        next.checkpoint_step = event.step;
        next.attempt_progressed = false;  // what it made durable may be what was damaged
        Lose(event.reason, life.checkpoint_step, policy, &decision);
      }
      return decision;

    case JobEventKind::kTooFewWorkers:
      if (present) EndAttempt(&decision);
      if (counts) {
        next.state = v1::RECOVERING;
        decision.message = WarningMessage(event.reason);
      }
      return decision;

    case JobEventKind::kAttemptFailed:
      if (present) EndAttempt(&decision);
      if (counts) {
        next.state = v1::FAILED;
        decision.error = event.reason;
        decision.message = InfoMessage(absl::StrCat("failed: ", event.reason));
      }
      return decision;

    case JobEventKind::kFinished:
      if (present) EndAttempt(&decision);
      if (counts) {
        next.state = v1::SUCCEEDED;
        decision.message = DetailMessage("finished");
      }
      return decision;

    case JobEventKind::kStopped:
      if (present) EndAttempt(&decision);
      // Stopped without a Cancel: the coordinator shuts down. The job recovers after its restart.
      if (counts) next.state = v1::RECOVERING;
      return decision;

    case JobEventKind::kTimeLimit:
      if (!counts) return decision;
      next.state = v1::FAILED;
      decision.error = event.reason;
      decision.message = InfoMessage("ended by its time limit");
      decision.actions = {JobAction::kStopAttempt};
      return decision;

    case JobEventKind::kCancel:
      if (life.state == v1::CANCELLED) return decision;
      if (IsOver(life.state)) {
        return absl::FailedPreconditionError(absl::StrCat("the job is ", StateName(life.state),
                                                          "; only one that is not over can be "
                                                          "cancelled"));
      }
      next.state = v1::CANCELLED;
      decision.message = InfoMessage("cancelled");
      if (life.attempt_running) decision.actions = {JobAction::kStopAttempt};
      return decision;

    case JobEventKind::kResume:
      if (life.state != v1::FAILED && life.state != v1::CANCELLED) {
        return absl::FailedPreconditionError(
            absl::StrCat("the job is ", StateName(life.state),
                         "; only one that failed or was cancelled can be resumed"));
      }
      next.state = v1::QUEUED;
      next.attempts_without_progress = 0;
      next.failures.clear();
      decision.message = InfoMessage(absl::StrCat("resumed from step ", life.checkpoint_step));
      return decision;

    case JobEventKind::kRestart:
      next.attempt_running = false;
      if (IsActive(life.state)) {
        next.state = v1::RECOVERING;
        decision.message =
            WarningMessage(absl::StrCat("the coordinator was started again; going on from step ",
                                        life.checkpoint_step, " when workers have joined"));
      }
      return decision;
  }
  return decision;
}

}  // namespace espalier
