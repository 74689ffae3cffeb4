#include "worker/trainer/timing_observer.h"

#include "worker/trainer/operator_times.h"

namespace espalier {
namespace {

// Steps that are timed; the first ones are atypical.
constexpr int64_t kFirstTimedStep = 5;
constexpr int64_t kTimedSteps = 3;

}  // namespace

bool TimingObserver::IsTimed() const {
  return steps_ >= kFirstTimedStep && steps_ < kFirstTimedStep + kTimedSteps;
}

absl::Status TimingObserver::OnStepBegin(TrainingRun&, int64_t, bool* profile) {
  if (IsTimed()) *profile = true;
  return absl::OkStatus();
}

absl::Status TimingObserver::OnStepReported(TrainingRun& run, int64_t, const StepReports& reports) {
  const bool timed = IsTimed();
  ++steps_;
  if (!timed) return absl::OkStatus();
  profiles_.push_back(reports.profile);
  if (profiles_.size() < kTimedSteps) return absl::OkStatus();
  v1::RunEvent times;
  *times.mutable_operator_times() = MedianStepTimes(profiles_);
  profiles_.clear();
  return run.Emit(times);
}

}  // namespace espalier
