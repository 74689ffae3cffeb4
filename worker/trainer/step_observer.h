// What hangs on the training loop: checkpoints, timing, evaluation, and later probes and callbacks.
//
// Contract between Trainer and its observers:
// 1. Every method is called on the thread that runs Trainer::Run, on all observers, in the order of
//    their registration.
// 2. A run calls OnRunBegin, then for each step OnStepBegin, OnStepEnd and OnStepReported, then
//    OnRunEnd. A run without steps calls OnRunBegin and OnRunEnd.
// 3. OnStepEnd comes before the step's report is sent, so it may add to the report. OnStepReported
//    comes after.
// 4. OnCheckpoint and OnEvaluation are called when an observer has emitted such an event, before
//    that Emit returns.
// 5. The first error ends the run: of an observer, of the step, of an event, or a stop. All
//    observers then get OnRunFailed and nothing else, and Run returns the error.
// 6. The code of an observer's error decides what the coordinator does (server/jobs/attempt_end.h):
//    InvalidArgument, ResourceExhausted or DataLoss fail the job; Unavailable, Aborted, Cancelled,
//    DeadlineExceeded or FailedPrecondition count as the loss of a worker, and it tries again.
// 7. Observers that communicate do so at the same steps on all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/worker.pb.h"
#include "worker/executor/executor.h"
#include "worker/trainer/reported_tensor.h"

namespace espalier {

struct StepReports {
  std::map<std::string, double> values;  // this rank's share of each sum
  // At most kMaxReportTensorBytes. Not summed: of several ranks with a name the lowest counts.
  std::map<std::string, ReportedTensor> tensors;
  double seconds = 0;
  std::vector<InstructionTime> profile;  // empty unless an observer asked for it
};

// The run as observers see it.
class TrainingRun {
 public:
  virtual ~TrainingRun() = default;
  virtual int64_t begin() const = 0;
  virtual int64_t end() const = 0;  // exclusive
  // Sends an event to the coordinator; an error must end the run.
  virtual absl::Status Emit(const v1::RunEvent& event) = 0;
  // Returns an error if the run is to end. Long work outside steps calls it now and then.
  virtual absl::Status CheckNotStopped() const = 0;
};

class StepObserver {
 public:
  virtual ~StepObserver() = default;

  // For messages: "checkpoint".
  virtual absl::string_view name() const = 0;

  virtual absl::Status OnRunBegin(TrainingRun&) { return absl::OkStatus(); }
  // Setting `*profile` to true times the step's instructions; no observer may set it to false.
  virtual absl::Status OnStepBegin(TrainingRun&, int64_t /*step*/, bool* /*profile*/) {
    return absl::OkStatus();
  }
  virtual absl::Status OnStepEnd(TrainingRun&, int64_t /*step*/, StepReports&) {
    return absl::OkStatus();
  }
  virtual absl::Status OnStepReported(TrainingRun&, int64_t /*step*/, const StepReports&) {
    return absl::OkStatus();
  }
  virtual absl::Status OnCheckpoint(TrainingRun&, const v1::CheckpointShard&) {
    return absl::OkStatus();
  }
  virtual absl::Status OnEvaluation(TrainingRun&, const v1::StepReport&) {
    return absl::OkStatus();
  }
  virtual absl::Status OnRunEnd(TrainingRun&) { return absl::OkStatus(); }
  // The run has ended early with `status`. Events can no longer be relied on; peers may be gone.
  virtual void OnRunFailed(TrainingRun&, const absl::Status& /*status*/) {}
};

}  // namespace espalier
