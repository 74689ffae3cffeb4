#include "planner/proto/plan_proto.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

std::string AxisNames(const SplitRule& rule) {
  if (rule.axes.empty()) return "none, it runs whole";
  return absl::StrJoin(rule.axes, ", ", [](std::string* out, const Axis& axis) {
    absl::StrAppend(out, axis.name, " (", axis.size, ")");
  });
}

absl::Status OperatorError(const v1::OperatorPlan& op, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("plan: operator '", op.node(), "' ", what));
}

absl::StatusOr<NodeConfig> ReadConfig(const PcgStructure::NodeInfo& info,
                                      const v1::OperatorPlan& op, int num_devices) {
  NodeConfig config;
  config.degrees.assign(info.rule.axes.size(), 1);
  std::map<std::string, int32_t> degrees(op.degrees().begin(), op.degrees().end());
  for (const auto& [name, degree] : degrees) {
    bool found = false;
    for (size_t a = 0; a < info.rule.axes.size(); ++a) {
      if (info.rule.axes[a].name != name) continue;
      config.degrees[a] = degree;
      found = true;
    }
    if (!found) {
      return OperatorError(
          op, absl::StrCat("has no axis '", name, "'; it has: ", AxisNames(info.rule)));
    }
  }
  config.devices.assign(op.devices().begin(), op.devices().end());
  if (absl::Status status = CheckConfig(info.rule, config, num_devices); !status.ok()) {
    return OperatorError(op, status.message());
  }
  return config;
}

// By forward node: whether a report depends on it, and not only results that a session keeps.
std::vector<bool> NeededByReports(const PcgStructure& structure) {
  const Graph& graph = structure.graph();
  std::vector<bool> needed(structure.nodes.size(), false);
  for (const auto& [name, value] : structure.reports) needed[graph.value(value).producer] = true;
  for (size_t n = needed.size(); n-- > 0;) {
    if (!needed[n]) continue;
    for (ValueId v : graph.node(static_cast<NodeId>(n)).inputs) {
      const NodeId producer = v == kNoValue ? kNoNode : graph.value(v).producer;
      if (producer != kNoNode) needed[producer] = true;
    }
  }
  return needed;
}

// Runs whole, where its first input is computed.
NodeConfig BesideItsInput(const PcgStructure& structure, const std::vector<NodeConfig>& configs,
                          NodeId n) {
  for (ValueId v : structure.graph().node(n).inputs) {
    const NodeId producer = v == kNoValue ? kNoNode : structure.graph().value(v).producer;
    if (producer == kNoNode || configs[producer].devices.empty()) continue;
    return OnDevice(structure.nodes[n].rule, configs[producer].devices[0]);
  }
  return OnDevice(structure.nodes[n].rule, 0);
}

}  // namespace

absl::StatusOr<std::vector<NodeConfig>> ConfigsFromPlan(const PcgStructure& structure,
                                                        const v1::Plan& plan) {
  const Graph& graph = structure.graph();
  std::map<std::string, NodeId> by_name;
  for (NodeId n = 0; n < static_cast<NodeId>(structure.nodes.size()); ++n) {
    by_name[graph.node(n).name] = n;
  }
  std::vector<NodeConfig> configs(structure.nodes.size());
  std::vector<bool> given(structure.nodes.size(), false);
  for (const v1::OperatorPlan& op : plan.operators()) {
    const auto it = by_name.find(op.node());
    if (it == by_name.end()) return OperatorError(op, "is not in the graph");
    const NodeId n = it->second;
    if (!op.op().empty() && op.op() != graph.node(n).op) {
      return OperatorError(op, absl::StrCat("is a '", op.op(), "' in the plan, a '",
                                            graph.node(n).op, "' in the graph"));
    }
    if (given[n]) return OperatorError(op, "is given twice");
    given[n] = true;
    if (structure.nodes[n].def == nullptr) continue;
    absl::StatusOr<NodeConfig> config = ReadConfig(structure.nodes[n], op, plan.devices_size());
    if (!config.ok()) return config.status();
    configs[n] = *std::move(config);
  }
  const std::vector<bool> needed =
      structure.outputs.empty() ? std::vector<bool>() : NeededByReports(structure);
  for (NodeId n : structure.LiveNodes()) {
    if (!given[n] && !needed.empty() && !needed[n]) {
      configs[n] = BesideItsInput(structure, configs, n);
    } else if (!given[n]) {
      return absl::InvalidArgumentError(absl::StrCat("plan: operator '", graph.node(n).name, "' (",
                                                     graph.node(n).op,
                                                     ") of the graph is missing"));
    }
  }
  return configs;
}

void ConfigsToPlan(const PcgStructure& structure, const std::vector<NodeConfig>& configs,
                   v1::Plan* plan) {
  for (NodeId n : structure.LiveNodes()) {
    const Node& node = structure.graph().node(n);
    const SplitRule& rule = structure.nodes[n].rule;
    v1::OperatorPlan* op = plan->add_operators();
    op->set_node(node.name);
    op->set_op(node.op);
    for (size_t a = 0; a < rule.axes.size(); ++a) {
      if (configs[n].degrees[a] > 1) {
        (*op->mutable_degrees())[rule.axes[a].name] = configs[n].degrees[a];
      }
    }
    for (int device : configs[n].devices) op->add_devices(device);
  }
}

absl::Status CheckPlanIsFor(const Graph& graph, const v1::Plan& plan) {
  if (plan.format_version() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: format_version is ", plan.format_version(), ", expected 1"));
  }
  if (plan.devices().empty()) {
    return absl::InvalidArgumentError("plan: field 'devices' is empty");
  }
  absl::Status stage = CheckZeroStage(plan.zero_stage(), "plan: field 'zero_stage'");
  if (!stage.ok()) return stage;
  const std::string fingerprint = GraphFingerprint(graph);
  if (plan.graph_fingerprint() == fingerprint) return absl::OkStatus();

  std::string difference =
      "all operators of the plan have the same name and type in the graph, so "
      "shapes, attributes or the batch size differ";
  std::map<std::string, const Node*> by_name;
  for (const Node& node : graph.nodes()) by_name[node.name] = &node;
  for (const v1::OperatorPlan& op : plan.operators()) {
    const auto it = by_name.find(op.node());
    if (it == by_name.end()) {
      difference = absl::StrCat("the first operator that does not match: '", op.node(), "' (",
                                op.op(), ") is not in the graph");
      break;
    }
    if (it->second->op != op.op()) {
      difference = absl::StrCat("the first operator that does not match: '", op.node(), "' is a '",
                                op.op(), "' in the plan, a '", it->second->op, "' in the graph");
      break;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the plan was made for another graph: it has fingerprint '",
                   plan.graph_fingerprint(), "' and batch size ", plan.batch_size(), ", graph '",
                   graph.name, "' has '", fingerprint, "'; ", difference));
}

}  // namespace espalier
