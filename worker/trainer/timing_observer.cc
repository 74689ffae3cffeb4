#include "worker/trainer/timing_observer.h"

#include "worker/trainer/operator_times.h"

namespace espalier {
namespace {

// Steps within a run that are timed; the first ones are atypical.
constexpr int64_t kFirstTimedStep = 5;
constexpr int64_t kTimedSteps = 3;

bool IsTimed(const TrainingRun& run, int64_t step) {
  const int64_t done_here = step - run.begin();
  return done_here >= kFirstTimedStep && done_here < kFirstTimedStep + kTimedSteps;
}

}  // namespace

absl::Status TimingObserver::OnStepBegin(TrainingRun& run, int64_t step, bool* profile) {
  if (IsTimed(run, step)) *profile = true;
  return absl::OkStatus();
}

absl::Status TimingObserver::OnStepReported(TrainingRun& run, int64_t step,
                                            const StepReports& reports) {
  if (!IsTimed(run, step)) return absl::OkStatus();
  profiles_.push_back(reports.profile);
  if (profiles_.size() < kTimedSteps) return absl::OkStatus();
  v1::RunEvent times;
  *times.mutable_operator_times() = MedianStepTimes(profiles_);
  profiles_.clear();
  return run.Emit(times);
}

}  // namespace espalier
