// Measures the ranks' connections before the first step, for the planner.
#pragma once

#include <functional>

#include "espalier/v1/cluster.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/trainer/step_observer.h"

namespace espalier {

struct LinkMeasurementOptions {
  Communicator* communicator = nullptr;  // outlives the observer
  // Required by `profile`; outlives the observer.
  Device* device = nullptr;
  // Also measures messages and collectives, and rank 0 emits the profile. Equal on all ranks.
  bool profile = false;
  std::function<void(const v1::Link&)> on_link;  // called on ranks 0 and 1
};

// Register it in the run after the ranks have connected, on all of them.
class LinkMeasurement : public StepObserver {
 public:
  explicit LinkMeasurement(LinkMeasurementOptions options);

  absl::string_view name() const override { return "link measurement"; }
  absl::Status OnRunBegin(TrainingRun& run) override;

 private:
  absl::Status MeasureLink();
  absl::Status ReportCommunication(TrainingRun& run);

  const LinkMeasurementOptions options_;
};

}  // namespace espalier
