#include "planner/plan/megatron_sharding.h"

#include <numeric>

namespace espalier {
namespace {

class Shares {
 public:
  Shares(const PcgStructure& structure, int tensor)
      : structure_(structure),
        tensor_(tensor),
        in_columns_(structure.graph().values().size(), false) {}

  NodeConfig Of(NodeId n) {
    const SplitRule& rule = structure_.nodes[n].rule;
    const int axis = AxisOf(n);
    if (axis < 0) return OnDevice(rule, 0);
    NodeConfig config;
    config.degrees.assign(rule.axes.size(), 1);
    config.degrees[axis] = tensor_;
    config.devices.resize(tensor_);
    std::iota(config.devices.begin(), config.devices.end(), 0);
    const Node& node = structure_.graph().node(n);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const std::vector<int>& dims = rule.outputs[k];
      in_columns_[node.outputs[k]] = IsComputed(n) && !dims.empty() && dims.back() == axis;
    }
    return config;
  }

 private:
  bool CanCut(const Axis& axis) const { return axis.size >= tensor_ && axis.size % tensor_ == 0; }

  int Find(const SplitRule& rule, AxisKind kind) const {
    for (size_t a = 0; a < rule.axes.size(); ++a) {
      if (rule.axes[a].kind == kind && CanCut(rule.axes[a])) return static_cast<int>(a);
    }
    return -1;
  }

  // Embedding tables are no layers: the linear layer after them is column-parallel.
  bool IsComputed(NodeId n) const { return structure_.graph().node(n).op != "embedding"; }

  int AxisOf(NodeId n) const {
    const SplitRule& rule = structure_.nodes[n].rule;
    const Node& node = structure_.graph().node(n);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue || !in_columns_[node.inputs[i]]) continue;
      const int axis = rule.inputs[i].empty() ? kNotSplit : rule.inputs[i].back();
      if (axis != kNotSplit && CanCut(rule.axes[axis])) return axis;
    }
    const bool layer = node.op == "linear" || node.op == "embedding";
    if (layer) {
      if (const int axis = Find(rule, AxisKind::kParameter); axis >= 0) return axis;
    }
    for (AxisKind kind : {AxisKind::kAttribute, AxisKind::kSample}) {
      if (const int axis = Find(rule, kind); axis >= 0) return axis;
    }
    return -1;
  }

  const PcgStructure& structure_;
  const int tensor_;
  std::vector<bool> in_columns_;  // by value: its last dimension is split
};

}  // namespace

std::vector<NodeConfig> MegatronSharding(const PcgStructure& structure, int tensor) {
  Shares shares(structure, tensor);
  std::vector<NodeConfig> configs(structure.nodes.size());
  for (NodeId n : structure.LiveNodes()) configs[n] = shares.Of(n);
  return configs;
}

}  // namespace espalier
