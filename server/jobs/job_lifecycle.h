// The state machine of a job as a pure function: (state, event) -> (new state, actions).
//
//              WorkersReady           Running              Finished
//   QUEUED ------------> PLANNING ------------> RUNNING ------------> SUCCEEDED
//     ^                     |  WorkersLost         |  WorkersLost
//     | Resume              v                      v
//     |                 RECOVERING <---------------+      (WorkersReady starts the next attempt,
//   FAILED, CANCELLED       +------ Running ------> RUNNING   Running ends the recovery)
//
// FAILED: AttemptFailed or TimeLimit at any time, or too many attempts without progress. CANCELLED:
// Cancel before the end. After a restart of the coordinator every active job is RECOVERING.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

struct JobLifecycle {
  v1::JobState state = v1::QUEUED;
  bool attempt_running = false;           // attempt number `attempts` holds threads and workers
  int32_t attempts = 0;                   // started so far; also the latest attempt's number
  int64_t checkpoint_step = 0;            // of the latest durable checkpoint
  bool attempt_progressed = false;        // this attempt made a checkpoint durable
  int32_t attempts_without_progress = 0;  // attempts lost since the last progress
  std::string failures;                   // reasons of those attempts, one per line

  bool operator==(const JobLifecycle&) const = default;
};

enum class JobEventKind {
  kWorkersReady,   // workers are reserved for the next attempt
  kRunning,        // the programs are loaded and the first step begins
  kCheckpointed,   // `step`: a checkpoint is durable
  kWorkersLost,    // the attempt lost a worker; `reason`
  kTooFewWorkers,  // no plan fits into the remaining workers; `reason`
  kDamaged,        // its checkpoint cannot be read; `step` of the one to use, 0: none; `reason`
  kAttemptFailed,  // the attempt failed by the job's own error; `reason`
  kFinished,       // all steps are done and the model is registered
  kStopped,        // the attempt ended on request
  kTimeLimit,      // the job has had workers for as long as it may; `reason`
  kCancel,         // a person
  kResume,         // a person
  kRestart,        // the coordinator was started again
};

struct JobLifecycleEvent {
  JobEventKind kind;
  int32_t attempt = 0;  // of attempt events; stale if it is not the current attempt
  int64_t step = 0;
  std::string reason;
};

enum class JobAction {
  kRollBack,  // to the last checkpoint: drop the reports of later steps
  kStartAttempt,
  kStopAttempt,  // request its end; it answers with one of the six endings
  kReleaseWorkers,
};

struct JobDecision {
  JobLifecycle life;
  std::vector<JobAction> actions;
  std::string error;  // for the job's record if it has just FAILED
  // For the job's log. That the job has failed is no warning: its state and its error say so, and
  // what waits for it fails.
  std::optional<v1::JobMessage> message;
};

struct JobPolicy {
  int max_attempts_without_progress = 5;
};

// Returns true while the results of an attempt count for the job. False once the job is cancelled,
// even if it is resumed before the attempt has ended.
bool IsActive(v1::JobState state);

// Returns FailedPrecondition for a Cancel or Resume that the state does not allow. Stale events
// change nothing.
absl::StatusOr<JobDecision> Decide(const JobLifecycle& life, const JobLifecycleEvent& event,
                                   const JobPolicy& policy);

}  // namespace espalier
