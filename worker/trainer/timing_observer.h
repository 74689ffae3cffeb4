// Times the operators of a few steps of a run and reports the median step.
#pragma once

#include <vector>

#include "worker/trainer/step_observer.h"

namespace espalier {

class TimingObserver : public StepObserver {
 public:
  absl::string_view name() const override { return "timing"; }
  absl::Status OnStepBegin(TrainingRun& run, int64_t step, bool* profile) override;
  absl::Status OnStepReported(TrainingRun& run, int64_t step, const StepReports& reports) override;

 private:
  std::vector<std::vector<InstructionTime>> profiles_;
};

}  // namespace espalier
