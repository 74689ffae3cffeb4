// Evaluates checkpoints of a job on leased workers, one after the other, without training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "espalier/v1/replay.pb.h"
#include "espalier/v1/training.pb.h"
#include "ops/probe/expression.h"
#include "server/jobs/attempt.h"
#include "server/replay/evaluation_answers.h"
#include "server/replay/replay_program.h"
#include "server/replay/replay_ranks.h"

namespace espalier {

// Returns the job's spec with the examples that the replay evaluates: those of `evaluate`, as
// TrainingSpec.validation.dataset, or those that the job kept apart or had for its validation.
// FailedPrecondition if it had none, InvalidArgument for a dataset of another format; both say what
// to do. The dataset itself is checked by ReplayProgram::Make.
absl::StatusOr<v1::TrainingSpec> SpecToEvaluate(const v1::TrainingSpec& spec,
                                                const v1::ReplaySpec& replay);

// Finds what is asked in the evaluation of a program that is made of a spec of SpecToEvaluate,
// before there are workers: lacking names and notes are for its estimate. FailedPrecondition if it
// evaluates nothing; `prefix` is of EvaluationPrefix; other errors as of the function for programs
// (evaluation_probes.h).
absl::StatusOr<EvaluationProbes> FindEvaluationProbes(const AttemptTools& tools,
                                                      const ReplayProgram& program,
                                                      const ReplayQuestions& asked,
                                                      const std::string& prefix);

struct EvaluatedCheckpoint {
  int64_t steps_done = 0;
  std::string directory;  // RecordedCheckpoint.directory; empty: the initial values, of 0 steps
};

struct EvaluationTask {
  std::string name;       // ReplayAttemptName; names of the workers' attempts begin with it
  std::string replay_id;  // with `number`, of the segment: who reads the checkpoints
  int number = 0;
  std::string job_id;
  const v1::TrainingSpec* spec = nullptr;  // of SpecToEvaluate; outlives the task's evaluations
  const ReplayProgram* program = nullptr;  // made of `spec`; the same
  std::string prefix;                      // EvaluationPrefix
  ReplayQuestions questions;               // none are needed
  std::vector<EvaluatedCheckpoint> checkpoints;
  std::vector<Member> members;  // by rank
  // Workers are given back after so long, or four times what loading took if that is longer, and
  // leased again, so that waiting jobs get them.
  absl::Duration lease = absl::Seconds(3);
};

// Called by one thread at a time. An error ends the evaluations, which return it.
class CheckpointEvaluationObserver {
 public:
  virtual ~CheckpointEvaluationObserver() = default;
  // What is known of a checkpoint once it is evaluated: the loss and the metrics, without a
  // reduction, "evaluation.loss", then the probes' answers; see EvaluationAnswers.
  virtual absl::Status OnRows(const EvaluatedCheckpoint& checkpoint,
                              std::vector<v1::HistoryRow> rows) = 0;
};

class CheckpointEvaluations {
 public:
  // `tools` and `observer` must outlive it. Errors as FindEvaluationProbes.
  static absl::StatusOr<std::unique_ptr<CheckpointEvaluations>> Make(
      const AttemptTools& tools, EvaluationTask task, CheckpointEvaluationObserver* observer);

  // With `lacking` probes, and notes.
  const EvaluationProbes& probes() const { return probes_; }

  // Blocks. Aborted if a worker is no longer idle, at first or between two leases. Other errors as
  // of ReplayRanks and of the observer; DataLoss names a damaged file. Checkpoints whose rows the
  // observer has are done. Once.
  absl::Status Run();
  // Ends Run with Cancelled. Thread-safe; does not block.
  void Cancel();

 private:
  CheckpointEvaluations(const AttemptTools& tools, EvaluationTask task,
                        CheckpointEvaluationObserver* observer)
      : tools_(tools), task_(std::move(task)), observer_(observer) {}

  // `checkpoint`: its folder in the store; empty: the initial values.
  std::vector<v1::LoadProgramRequest> Requests(const std::string& checkpoint,
                                               const std::string& values) const;
  // Leases the workers and loads the program and this checkpoint.
  absl::Status Load(const std::string& checkpoint);
  // Lets others have the workers, if there is a lease, for long enough that they notice.
  absl::Status Yield();
  void GiveBack();
  absl::Status Evaluate(const EvaluatedCheckpoint& checkpoint);

  bool cancelled() {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

  const AttemptTools& tools_;
  const EvaluationTask task_;
  CheckpointEvaluationObserver* const observer_;
  EvaluationProbes probes_;
  int leases_ = 0;        // so far
  absl::Time lease_end_;  // of the present one
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ReplayRanks> ranks_;  // set under mutex_; null: no lease
};

}  // namespace espalier
