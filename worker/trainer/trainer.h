// The training loop: runs a range of steps of one rank and tells its observers.
//
// It loads nothing and has no global state, so several may run in one process, each with its own
// executor and communicator. The executor holds the batch source.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/collective/communicator.h"
#include "worker/executor/executor.h"
#include "worker/trainer/step_observer.h"

namespace espalier {

struct TrainerOptions {
  Executor* executor = nullptr;          // outlives the trainer
  Communicator* communicator = nullptr;  // that of the executor; null on one device
  int64_t begin = 0;                     // steps [begin, end)
  int64_t end = 0;
  std::vector<StepObserver*> observers;  // outlive the trainer
  std::function<absl::Status(const v1::RunEvent&)> emit;
  // Optional. Called before each step, and when a step has failed; an error ends the run with that
  // status.
  std::function<absl::Status()> check_not_stopped;
};

// Not thread-safe; only the functions in the options may be shared with other threads.
class Trainer : private TrainingRun {
 public:
  explicit Trainer(TrainerOptions options);

  // Runs Begin, the steps and End, or after an error Fail. Blocks. Returns the status of the first
  // observer, step or event that failed, unchanged. REQUIRES: called once, and none of the four
  // below.
  absl::Status Run();

  // The parts of Run, for a loop that chooses its steps itself, such as a replay: Begin once, then
  // RunStep for any steps in any order, then End, or Fail with the first error. Each blocks. The
  // ranks of a job choose the same steps.
  absl::Status Begin();
  absl::Status RunStep(int64_t step);
  absl::Status End();  // also flushes the communicator
  void Fail(const absl::Status& status);

  // After an observer's error, where it was: "checkpoint, OnStepReported of step 3". Else empty.
  const std::string& failed_at() const { return failed_at_; }

 private:
  int64_t begin() const override { return options_.begin; }
  int64_t end() const override { return options_.end; }
  absl::Status Emit(const v1::RunEvent& event) override;
  absl::Status CheckNotStopped() const override;

  absl::Status RunRange();
  absl::Status Report(int64_t step, const StepReports& reports);
  // Calls `method` on each observer until one fails, and then sets failed_at_.
  absl::Status Notify(absl::string_view place,
                      const std::function<absl::Status(StepObserver&)>& method);

  const TrainerOptions options_;
  std::string failed_at_;
};

}  // namespace espalier
