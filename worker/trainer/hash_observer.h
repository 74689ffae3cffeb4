// Hashes what every instruction of one step writes, so that two replays of the step can be compared
// operator by operator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/v1/worker.pb.h"
#include "worker/executor/executor.h"
#include "worker/trainer/step_observer.h"

namespace espalier {

// `executor` must outlive it.
class HashObserver : public StepObserver {
 public:
  HashObserver(Executor* executor, int64_t step) : executor_(executor), step_(step) {}

  absl::string_view name() const override { return "hashes"; }
  absl::Status OnStepBegin(TrainingRun& run, int64_t step, bool* profile) override;
  absl::Status OnStepReported(TrainingRun& run, int64_t step, const StepReports& reports) override;

 private:
  Executor* const executor_;
  const int64_t step_;
  v1::InstructionHashes hashes_;
};

}  // namespace espalier
