// Evaluates the held-out examples after the last step of a run.
#pragma once

#include <cstdint>

#include "worker/executor/executor.h"
#include "worker/trainer/probe_reader.h"
#include "worker/trainer/step_observer.h"

namespace espalier {

class EvaluationObserver : public StepObserver {
 public:
  // `executor` outlives the observer; null makes OnRunEnd return FailedPrecondition.
  // `probes`, if not null, reads values of each batch, which are emitted.
  EvaluationObserver(Executor* executor, int64_t batches, ProbeReader* probes = nullptr)
      : executor_(executor), batches_(batches), probes_(probes) {}

  absl::string_view name() const override { return "evaluation"; }
  // Emits the mean over batches of this rank's values. A stop ends it before the next batch.
  absl::Status OnRunEnd(TrainingRun& run) override;

 private:
  Executor* const executor_;
  const int64_t batches_;
  ProbeReader* const probes_;
};

}  // namespace espalier
