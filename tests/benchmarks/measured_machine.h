// The machine as the planner sees it when everything is measured: a CPU device's rates, the link
// between two processes, and operator times.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "planner/cost/analytic.h"
#include "planner/cost/measured.h"
#include "planner/planner.h"
#include "tests/benchmarks/ranks.h"
#include "worker/device/device.h"

namespace espalier {

class MeasuredMachine {
 public:
  // Calibrates a device of `threads` threads and, if `with_link`, the link between two processes.
  static absl::StatusOr<std::unique_ptr<MeasuredMachine>> Make(int threads, bool with_link);

  // `count` devices like the one measured, joined by the link as collectives meet it.
  Machine Devices(int count) const;
  const proto::Device& device() const { return calibrated_; }
  const LinkMeasurement& link() const { return link_; }

  // Operators are measured when first met, as the coordinator has workers do it.
  MeasuredCost* cost() { return &measured_; }
  double measuring_seconds() const { return measuring_seconds_; }

 private:
  MeasuredMachine();
  std::optional<CostModel::Times> Measure(const OpDef& def, const NodeTypes& shard);

  std::unique_ptr<Device> device_;
  proto::Device calibrated_;
  LinkMeasurement link_;
  AnalyticCost analytic_;
  MeasuredCost measured_;
  double measuring_seconds_ = 0;
};

}  // namespace espalier
