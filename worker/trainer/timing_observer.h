// Times the operators of a few steps and reports the median one, once. May be in several runs, one
// after the other, whose steps it counts together.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/trainer/step_observer.h"

namespace espalier {

class TimingObserver : public StepObserver {
 public:
  absl::string_view name() const override { return "timing"; }
  absl::Status OnStepBegin(TrainingRun& run, int64_t step, bool* profile) override;
  absl::Status OnStepReported(TrainingRun& run, int64_t step, const StepReports& reports) override;

 private:
  bool IsTimed() const;

  int64_t steps_ = 0;  // seen so far
  std::vector<std::vector<InstructionTime>> profiles_;
};

}  // namespace espalier
