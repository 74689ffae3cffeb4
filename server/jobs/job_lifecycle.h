// The life of a job as a pure function: what it was, what happened -> what it is, what to do.
//
//              WorkersReady           Running              Finished
//   QUEUED ------------> PLANNING ------------> RUNNING ------------> SUCCEEDED
//     ^                     |  WorkersLost         |  WorkersLost
//     | Resume              v                      v
//     |                 RECOVERING <---------------+      (WorkersReady starts the next attempt,
//   FAILED, CANCELLED       +------ Running ------> RUNNING   Running ends the recovery)
//
// FAILED: AttemptFailed at any time, or too many attempts without progress. CANCELLED: Cancel
// before the end. After a restart of the coordinator whatever was under way is RECOVERING.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

struct JobLifecycle {
  v1::JobState state = v1::QUEUED;
  bool attempt_running = false;     // threads and workers are busy with the attempt `attempts`
  int32_t attempts = 0;             // started so far; the last one's number
  int64_t checkpoint_step = 0;      // of the last durable checkpoint
  bool attempt_progressed = false;  // a checkpoint became durable in this attempt
  int32_t attempts_without_progress = 0;            // attempts lost since the last progress
  std::string failures;             // their reasons, one per line

  bool operator==(const JobLifecycle&) const = default;
};

enum class JobEventKind {
  kWorkersReady,   // workers are reserved for the next attempt
  kRunning,        // the programs are loaded and the first step begins
  kCheckpointed,   // `step`: a checkpoint is durable
  kWorkersLost,    // the attempt ended for lack of a worker; `reason`
  kTooFewWorkers,  // the attempt ended as no plan fits into the workers that are left; `reason`
  kAttemptFailed,  // the attempt ended by the job's own fault; `reason`
  kFinished,       // the attempt did all steps and the model is registered
  kStopped,        // the attempt ended because it was told to
  kCancel,         // a person
  kResume,         // a person
  kRestart,        // the coordinator was started again
};

struct JobLifecycleEvent {
  JobEventKind kind;
  int32_t attempt =
      0;  // of the events of an attempt: those of another than the present one are stale
  int64_t step = 0;
  std::string reason;
};

enum class JobAction {
  kRollBack,  // to the last checkpoint: drop the reports of later steps
  kStartAttempt,
  kStopAttempt,  // tell it to end; it answers with one of the five endings
  kReleaseWorkers,
};

struct JobDecision {
  JobLifecycle life;
  std::vector<JobAction> actions;
  std::string error;    // for the job's record, when it has just FAILED
  std::string message;  // for people; may be empty
};

struct JobPolicy {
  int max_attempts_without_progress = 5;
};

// Whether what an attempt does counts for the job. Not once it was cancelled, though it be resumed
// before the attempt has ended.
bool IsActive(v1::JobState state);

// FailedPrecondition for a Cancel or Resume that the state does not allow. Stale events change
// nothing.
absl::StatusOr<JobDecision> Decide(const JobLifecycle& life, const JobLifecycleEvent& event,
                                   const JobPolicy& policy);

}  // namespace espalier
