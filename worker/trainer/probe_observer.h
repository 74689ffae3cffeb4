// Sends the values that a replay asks for, of the steps that it names.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/v1/worker.pb.h"
#include "worker/trainer/probe_reader.h"
#include "worker/trainer/step_observer.h"

namespace espalier {

// `reader` must outlive it.
class ProbeObserver : public StepObserver {
 public:
  ProbeObserver(ProbeReader* reader, const v1::ProbeSteps& steps)
      : reader_(reader), steps_(steps) {}

  absl::string_view name() const override { return "probes"; }
  absl::Status OnStepBegin(TrainingRun& run, int64_t step, bool* profile) override;
  absl::Status OnStepEnd(TrainingRun& run, int64_t step, StepReports& reports) override;
  // Emits the values, one event for those that fit together into a message.
  absl::Status OnStepReported(TrainingRun& run, int64_t step, const StepReports& reports) override;

 private:
  bool IsRead(int64_t step) const;

  ProbeReader* const reader_;
  const v1::ProbeSteps steps_;
  std::vector<v1::RankProbeResult> results_;
};

// Emits `results` in events that are no larger than a message may be.
absl::Status EmitProbeResults(TrainingRun& run, int64_t step, bool evaluation,
                              std::vector<v1::RankProbeResult> results);

}  // namespace espalier
