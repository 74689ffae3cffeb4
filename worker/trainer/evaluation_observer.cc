#include "worker/trainer/evaluation_observer.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/trainer/probe_observer.h"

namespace espalier {

absl::Status EvaluationObserver::OnRunEnd(TrainingRun& run) {
  if (executor_ == nullptr) {
    return absl::FailedPreconditionError(
        "evaluation was asked for, but the job has no program or no held-out examples for it");
  }
  const absl::Time start = absl::Now();
  std::map<std::string, double> sums;
  for (int64_t batch = 0; batch < batches_; ++batch) {
    if (absl::Status s = run.CheckNotStopped(); !s.ok()) return s;
    if (probes_ != nullptr) {
      if (absl::Status s = probes_->BeginStep(); !s.ok()) return s;
    }
    absl::StatusOr<StepResult> result = executor_->Step(batch);
    if (!result.ok()) {
      return absl::Status(result.status().code(),
                          absl::StrCat("evaluation: ", std::string(result.status().message())));
    }
    for (const auto& [name, value] : result->values) sums[name] += value;
    if (probes_ == nullptr) continue;
    absl::StatusOr<std::vector<v1::RankProbeResult>> values = probes_->EndStep();
    absl::Status s = values.ok()
                         ? EmitProbeResults(run, batch, /*evaluation=*/true, *std::move(values))
                         : values.status();
    if (!s.ok()) return s;
  }
  v1::RunEvent event;
  event.mutable_evaluation()->set_step(run.end());
  event.mutable_evaluation()->set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  for (const auto& [name, sum] : sums) {
    (*event.mutable_evaluation()->mutable_values())[name] = sum / static_cast<double>(batches_);
  }
  return run.Emit(event);
}

}  // namespace espalier
