#include "planner/plan/calibrate_operators.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "planner/pcg/micro_batches.h"
#include "planner/pcg/structure.h"
#include "planner/proto/plan_proto.h"
#include "planner/simulator/cpu_contention.h"

namespace espalier {
namespace {

using TimeByName = std::map<std::pair<std::string, std::string>, double>;  // node and operator

// Of one shape on one kind of device.
struct OperatorSum {
  const OpDef* def = nullptr;
  NodeTypes types;
  const v1::Device* device = nullptr;
  double forward = 0, backward = 0;
  int forward_count = 0, backward_count = 0;
};

}  // namespace

void SortByError(std::vector<PredictionError>* drifts) {
  std::stable_sort(drifts->begin(), drifts->end(), [](const auto& a, const auto& b) {
    return std::abs(a.measured_seconds - a.predicted_seconds) >
           std::abs(b.measured_seconds - b.predicted_seconds);
  });
}

absl::StatusOr<std::vector<PredictionError>> CalibrateOperators(
    const OpRegistry& registry, const Graph& graph, const v1::Plan& plan,
    const std::vector<std::vector<OperatorTime>>& times, MeasuredCost* cost) {
  std::vector<PredictionError> drifts;
  const std::vector<v1::Device> devices(plan.devices().begin(), plan.devices().end());
  if (BatchTilesOf(plan) > 1 || CpuContention(devices).needed()) return drifts;
  if (absl::Status s = CheckPlanIsFor(graph, plan); !s.ok()) return s;
  absl::StatusOr<Graph> own = GraphOf(registry, graph, plan);
  if (!own.ok()) return own.status();
  absl::StatusOr<PcgStructure> structure =
      BuildStructure(registry, *own, /*forward_only=*/false, plan.zero_stage());
  if (!structure.ok()) return structure.status();
  if (absl::Status s = SplitIntoMicroBatches(MicroBatchesOf(plan), &*structure); !s.ok()) return s;
  absl::StatusOr<std::vector<NodeConfig>> configs = ConfigsFromPlan(*structure, plan);
  if (!configs.ok()) return configs.status();

  std::vector<TimeByName> by_device(devices.size());
  for (size_t d = 0; d < std::min(times.size(), devices.size()); ++d) {
    for (const OperatorTime& time : times[d]) {
      if (!std::isfinite(time.seconds) || time.seconds < 0) continue;
      by_device[d][{time.node, time.op}] = time.seconds;
    }
  }
  const auto find = [&](int device, const std::string& node, const std::string& op) -> double {
    const auto found = by_device[device].find({node, op});
    return found == by_device[device].end() ? -1 : found->second;
  };
  std::map<std::string, double> measured;   // by node
  std::map<std::string, OperatorSum> sums;  // by what is measured
  for (size_t n = 0; n < configs->size(); ++n) {
    const NodeConfig& config = (*configs)[n];
    if (config.devices.empty()) continue;
    const PcgStructure::NodeInfo& info = structure->nodes[n];
    const std::string& name = structure->graph().node(static_cast<NodeId>(n)).name;
    const NodeTypes types = LocalTypes(info.types, info.rule, config.degrees);
    for (int device : config.devices) {
      const double forward = find(device, name, info.def->name);
      const double backward = find(device, name, info.def->name + "_grad");
      if (forward < 0 && backward < 0) continue;
      OperatorSum& sum = sums[MeasurementKey(*info.def, types, devices[device])];
      sum.def = info.def;
      sum.types = types;
      sum.device = &devices[device];
      if (forward >= 0) sum.forward += forward, ++sum.forward_count;
      if (backward >= 0) sum.backward += backward, ++sum.backward_count;
      double& longest = measured[name];
      longest = std::max(longest, std::max(forward, 0.0) + std::max(backward, 0.0));
    }
  }
  for (const auto& [key, sum] : sums) {
    CostModel::Times mean{-1, -1};
    if (sum.forward_count > 0) mean.forward = sum.forward / sum.forward_count;
    if (sum.backward_count > 0) mean.backward = sum.backward / sum.backward_count;
    cost->Observe(*sum.def, sum.types, *sum.device, mean);
  }
  for (const v1::OperatorPlan& op : plan.operators()) {
    const auto found = measured.find(op.node());
    if (found == measured.end() || op.predicted_seconds() <= 0) continue;
    drifts.push_back({op.node(), op.predicted_seconds(), found->second});
  }
  SortByError(&drifts);
  return drifts;
}

}  // namespace espalier
