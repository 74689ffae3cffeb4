// The machine as the planner sees it when everything is measured: a CPU device's rates, messages
// and collectives between processes, and operator times.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "planner/cost/analytic_cost.h"
#include "planner/cost/measured_cost.h"
#include "planner/cost/profile.h"
#include "planner/machine/communication.h"
#include "planner/planner.h"
#include "tests/benchmarks/rank_processes.h"
#include "worker/device/device.h"

namespace espalier {

class MeasuredMachine {
 public:
  // Calibrates a device of `threads` threads and what up to `ranks` processes say to each other
  // (1: nothing, and devices are as if each had a host of its own). What the profile file says
  // (planner/cost/profile.h; empty: no file) is not measured again.
  static absl::StatusOr<std::unique_ptr<MeasuredMachine>> Make(int threads, int ranks,
                                                               const std::string& profile = "");
  // All that has been measured, as such a file.
  std::string Profile() const;

  // `count` devices like the one measured; what they say to each other is what as many processes
  // do: ranks that share cores wait for each other in another way.
  Machine Devices(int count) const;
  const v1::Device& device() const { return calibrated_; }
  // By the number of ranks, from 2 on.
  const std::map<int, v1::CommunicationProfile>& communication() const { return communication_; }

  // Operators are measured when first met, as the coordinator has workers do it.
  MeasuredCost* cost() { return &measured_; }
  double measuring_seconds() const { return measuring_seconds_; }

 private:
  MeasuredMachine();
  std::optional<CostModel::Times> Measure(const OpDef& def, const NodeTypes& shard);

  std::unique_ptr<Device> device_;
  v1::Device calibrated_;
  std::map<int, v1::CommunicationProfile> communication_;
  std::map<int, std::shared_ptr<const CommunicationModel>> models_;
  AnalyticCost analytic_;
  MeasuredCost measured_;
  double measuring_seconds_ = 0;
};

}  // namespace espalier
