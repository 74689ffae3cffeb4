// A planner Machine of measured values: a CPU device's rates, messages and collectives between
// processes, and operator times.
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
  // Calibrates a device of `threads` threads, and communication between up to `ranks` processes (1:
  // none; each device then has its own host). Values in the profile file (planner/cost/profile.h;
  // empty: no file) are not measured again.
  static absl::StatusOr<std::unique_ptr<MeasuredMachine>> Make(int threads, int ranks,
                                                               const std::string& profile = "");
  // Returns all measurements as a profile file.
  std::string Profile() const;

  // Returns `count` devices like the measured one, with the communication times of `count`
  // processes: these depend on the count because ranks share cores.
  Machine Devices(int count) const;
  const v1::Device& device() const { return calibrated_; }
  // By the number of ranks, from 2 on.
  const std::map<int, v1::CommunicationProfile>& communication() const { return communication_; }

  // Measures operators on first use, as workers do for the coordinator.
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
