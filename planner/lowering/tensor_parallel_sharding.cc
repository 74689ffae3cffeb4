#include "planner/lowering/tensor_parallel_sharding.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/pcg/operator_sequence.h"

namespace espalier {
namespace {

constexpr int kMaxRanks = 1024;

absl::Status CheckDegrees(const ServingDegrees& degrees) {
  for (const auto& [name, degree] : {std::pair("tensor_parallel", degrees.tensor_parallel),
                                     std::pair("pipeline_parallel", degrees.pipeline_parallel)}) {
    if (degree < 1 || degree > kMaxRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", degree, "; accepted: 1 to ", kMaxRanks));
    }
  }
  if (degrees.ranks() <= kMaxRanks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor_parallel x pipeline_parallel is ",
                                                 degrees.ranks(), "; accepted: up to ", kMaxRanks));
}

// Returns the graph with its named outputs as results of nodes of their own, and the biases of
// `apart` added by nodes of their own.
absl::StatusOr<Graph> Prepare(const OpRegistry& registry, const Graph& given,
                              const std::set<std::string>& apart) {
  Graph graph;
  graph.name = given.name;
  graph.metadata = given.metadata;
  std::vector<ValueId> moved(given.values().size(), kNoValue);
  for (size_t v = 0; v < given.values().size(); ++v) {
    const Value& value = given.values()[v];
    if (value.kind != ValueKind::kComputed) moved[v] = graph.AddValue(value);
  }
  const auto add = [&](std::string name, std::string op, std::vector<ValueId> inputs) {
    Node node;
    node.name = name;
    node.op = std::move(op);
    node.inputs = std::move(inputs);
    Value value;
    value.name = std::move(name);
    node.outputs = {graph.AddValue(std::move(value))};
    const ValueId result = node.outputs[0];
    graph.AddNode(std::move(node));
    return result;
  };
  for (const Node& from : given.nodes()) {
    Node node = from;
    for (ValueId& v : node.inputs) v = v == kNoValue ? kNoValue : moved[v];
    for (ValueId& v : node.outputs) {
      if (v == kNoValue) continue;
      const ValueId before = v;
      v = moved[before] = graph.AddValue(given.value(before));
    }
    ValueId bias = kNoValue;
    if (apart.count(from.name) > 0) {
      bias = node.inputs[2];
      node.inputs.resize(2);
    }
    const ValueId product = node.outputs[0];
    graph.AddNode(std::move(node));
    if (bias == kNoValue) continue;
    moved[from.outputs[0]] = add(absl::StrCat(from.name, ".plus_bias"), "add", {product, bias});
  }
  for (const auto& [name, value] : given.outputs) {
    graph.outputs.emplace_back(name,
                               add(absl::StrCat("outputs.", name), "identity", {moved[value]}));
  }
  if (absl::Status status = BindAndInfer(registry, 1, &graph); !status.ok()) return status;
  return graph;
}

// A product with this many times fewer columns than operand columns is a gate: every device needs
// its few results, and gathering them takes longer than computing them.
constexpr int64_t kGateRatio = 8;

// Returns the operand that this node keeps between steps, or -1.
int StateOperand(const Graph& graph, const Node& node) {
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] != kNoValue && graph.value(node.inputs[i]).kind == ValueKind::kState) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// Returns the pipeline stage of each forward node. Stages have equal numbers of layers (nodes that
// keep states), and each cut is where the fewest bytes cross.
absl::StatusOr<std::vector<int>> StagesOfNodes(const PcgStructure& structure, int stages) {
  const OperatorSequence sequence(structure);
  const std::vector<NodeId>& nodes = sequence.nodes();
  std::vector<int> layers;  // positions in `nodes`
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (StateOperand(structure.graph(), structure.graph().node(nodes[i])) >= 0) {
      layers.push_back(static_cast<int>(i));
    }
  }
  const int count = static_cast<int>(layers.size());
  if (stages > std::max(1, count)) {
    return absl::InvalidArgumentError(absl::StrCat("pipeline_parallel is ", stages,
                                                   ", but the model has ", count,
                                                   " layers; accepted: 1 to ", std::max(1, count)));
  }
  std::vector<int> stage_of(structure.nodes.size(), 0);
  int begin = 0;
  for (int stage = 0; stage < stages; ++stage) {
    int end = static_cast<int>(nodes.size());
    if (stage + 1 < stages) {
      // The last of several equal cuts: it lies between two layers.
      const int next = (count * (stage + 1) + stages - 1) / stages;
      end = layers[next - 1] + 1;
      for (int i = end; i <= layers[next]; ++i) {
        if (sequence.Crossing(i) <= sequence.Crossing(end)) end = i;
      }
    }
    for (; begin < end; ++begin) stage_of[nodes[begin]] = stage;
  }
  return stage_of;
}

class Sharder {
 public:
  Sharder(const PcgStructure& structure, const ServingDegrees& degrees, std::vector<int> stage_of)
      : structure_(structure),
        graph_(structure.graph()),
        parts_(degrees.tensor_parallel),
        last_stage_(degrees.pipeline_parallel - 1),
        stage_of_(std::move(stage_of)),
        cut_(graph_.values().size(), kNotSplit) {
    for (const auto& [name, value] : structure.outputs) {
      is_output_.push_back(graph_.value(value).producer);
    }
  }

  absl::StatusOr<NodeConfig> Of(NodeId n) {
    const SplitRule& rule = structure_.nodes[n].rule;
    if (IsOutput(n)) return OnDevice(rule, last_stage_ * parts_);
    NodeConfig config = OnDevice(rule, stage_of_[n] * parts_);
    if (parts_ == 1) return config;
    config.devices.resize(parts_);
    std::iota(config.devices.begin(), config.devices.end(), stage_of_[n] * parts_);
    absl::StatusOr<int> axis = AxisOf(n);
    if (!axis.ok()) return axis.status();
    if (*axis == kNotSplit) {
      config.replicated = true;
      return config;
    }
    config.degrees[*axis] = parts_;
    const Node& node = graph_.node(n);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const std::vector<int>& dims = rule.outputs[k];
      const auto found = std::find(dims.begin(), dims.end(), *axis);
      if (node.outputs[k] == kNoValue || found == dims.end()) continue;
      cut_[node.outputs[k]] = static_cast<int>(found - dims.begin());
    }
    return config;
  }

 private:
  bool IsOutput(NodeId n) const {
    return std::find(is_output_.begin(), is_output_.end(), n) != is_output_.end();
  }
  absl::StatusOr<int> AxisOf(NodeId n) const {
    const SplitRule& rule = structure_.nodes[n].rule;
    const Node& node = graph_.node(n);
    if (const int state = StateOperand(graph_, node); state >= 0) {
      return AxisOfState(rule, node, state);
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId v = node.inputs[i];
      if (v == kNoValue || cut_[v] == kNotSplit || !SameStage(v, n)) continue;
      const int axis = rule.inputs[i][cut_[v]];
      if (Cuttable(rule, axis, node) && OperandsAreCut(n, axis)) return axis;
    }
    return AxisOfMatrix(n);
  }

  // Whether all computed operands that follow the axis are already split along it. The residual
  // stream is not: if it were split, each norm would have to gather it.
  bool OperandsAreCut(NodeId n, int axis) const {
    const SplitRule& rule = structure_.nodes[n].rule;
    const Node& node = graph_.node(n);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId v = node.inputs[i];
      if (v == kNoValue || graph_.value(v).kind != ValueKind::kComputed) continue;
      for (size_t d = 0; d < rule.inputs[i].size(); ++d) {
        if (rule.inputs[i][d] != axis) continue;
        if (cut_[v] != static_cast<int>(d) || !SameStage(v, n)) return false;
      }
    }
    return true;
  }

  // Splits into equal parts, and never along the rows of the batch.
  bool Cuttable(const SplitRule& rule, int axis, const Node& node) const {
    if (axis == kNotSplit || rule.axes[axis].size % parts_ != 0) return false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId v = node.inputs[i];
      if (v != kNoValue && structure_.Dynamic(v) != v1::STATIC && !rule.inputs[i].empty() &&
          rule.inputs[i][0] == axis) {
        return false;
      }
    }
    return true;
  }

  bool SameStage(ValueId v, NodeId n) const {
    const NodeId producer = graph_.value(v).producer;
    return producer != kNoNode && stage_of_[producer] == stage_of_[n];
  }

  absl::StatusOr<int> AxisOfState(const SplitRule& rule, const Node& node, int state) const {
    for (int axis : rule.inputs[state]) {
      if (axis == kNotSplit) continue;
      if (Cuttable(rule, axis, node)) return axis;
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor_parallel is ", parts_, ", but '", node.name, "' has an axis '",
          rule.axes[axis].name, "' of ", rule.axes[axis].size, "; accepted: its divisors"));
    }
    return absl::InvalidArgumentError(absl::StrCat("tensor_parallel is ", parts_, ", but '",
                                                   node.name, "' (", node.op,
                                                   ") cannot be cut; accepted: 1"));
  }

  // For an operator with its own matrix (or table) and whole operands. Of several matrices, as in
  // an adapter, takes the first that has columns.
  int AxisOfMatrix(NodeId n) const {
    const SplitRule& rule = structure_.nodes[n].rule;
    const Node& node = graph_.node(n);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue) continue;
      const Value& value = graph_.value(node.inputs[i]);
      if (value.kind != ValueKind::kParameter || value.type.dims.size() < 2) continue;
      int columns = kNotSplit;
      for (int axis : rule.inputs[i]) {
        if (axis == kNotSplit) continue;
        // A table of rows: each part contributes its rows.
        if (rule.axes[axis].kind == AxisKind::kReduction && !ReadsOf(rule, axis, i)) {
          return Cuttable(rule, axis, node) ? axis : kNotSplit;
        }
        const bool column = rule.axes[axis].kind == AxisKind::kParameter;
        if (column && Cuttable(rule, axis, node) && columns == kNotSplit) columns = axis;
      }
      if (columns == kNotSplit) continue;
      return ReadersFollow(n, columns) || !IsGate(node) ? columns : kNotSplit;
    }
    return kNotSplit;
  }

  // Whether an operand other than `parameter` follows the axis.
  static bool ReadsOf(const SplitRule& rule, int axis, size_t parameter) {
    for (size_t i = 0; i < rule.inputs.size(); ++i) {
      if (i == parameter) continue;
      if (std::find(rule.inputs[i].begin(), rule.inputs[i].end(), axis) != rule.inputs[i].end()) {
        return true;
      }
    }
    return false;
  }

  bool IsGate(const Node& node) const {
    const Dims& x = graph_.value(node.inputs[0]).type.dims;
    const Dims& y = graph_.value(node.outputs[0]).type.dims;
    return !x.empty() && !y.empty() && y.back() * kGateRatio <= x.back();
  }

  // Whether all readers can use parts of the first result along `axis`, or gather it anyway.
  bool ReadersFollow(NodeId n, int axis) const {
    const std::vector<int>& dims = structure_.nodes[n].rule.outputs[0];
    const auto found = std::find(dims.begin(), dims.end(), axis);
    if (found == dims.end()) return false;
    const ValueId v = graph_.node(n).outputs[0];
    for (int s : structure_.slots_of_value[v]) {
      const LayoutRef& reader = structure_.slots[s].required;
      if (IsOutput(reader.node)) continue;
      const SplitRule& rule = structure_.nodes[reader.node].rule;
      const int follows = rule.inputs[reader.index][found - dims.begin()];
      if (!Cuttable(rule, follows, graph_.node(reader.node))) return false;
    }
    return true;
  }

  const PcgStructure& structure_;
  const Graph& graph_;
  const int parts_;
  const int last_stage_;
  const std::vector<int> stage_of_;
  std::vector<NodeId> is_output_;
  std::vector<int> cut_;  // by value: the dimension split among the stage's devices
};

}  // namespace

absl::StatusOr<ShardedServing> ShardServingGraph(const OpRegistry& registry, const Graph& graph,
                                                 const ServingDegrees& degrees) {
  if (absl::Status status = CheckDegrees(degrees); !status.ok()) return status;
  Graph whole = graph;
  absl::StatusOr<ReplicatedParameters> replicated =
      ReplicateKvHeads(degrees.tensor_parallel, &whole);
  if (!replicated.ok()) return replicated.status();
  // Which biases block a split is known only after sharding everything.
  std::set<std::string> apart;
  while (true) {
    const absl::StatusOr<Graph> prepared = Prepare(registry, whole, apart);
    if (!prepared.ok()) return prepared.status();
    absl::StatusOr<PcgStructure> structure = BuildServingStructure(registry, *prepared);
    if (!structure.ok()) return structure.status();
    absl::StatusOr<std::vector<NodeConfig>> configs = ShardServing(*structure, degrees);
    if (!configs.ok()) return configs.status();
    const std::vector<NodeId> biases = BiasesBlockingSplits(*structure, *configs);
    if (biases.empty()) {
      return ShardedServing{*std::move(structure), *std::move(configs), *std::move(replicated)};
    }
    for (NodeId n : biases) apart.insert(structure->graph().node(n).name);
  }
}

absl::StatusOr<std::vector<NodeConfig>> ShardServing(const PcgStructure& structure,
                                                     const ServingDegrees& degrees) {
  absl::StatusOr<std::vector<int>> stages = StagesOfNodes(structure, degrees.pipeline_parallel);
  if (!stages.ok()) return stages.status();
  Sharder sharder(structure, degrees, *std::move(stages));
  std::vector<NodeConfig> configs(structure.nodes.size());
  for (NodeId n : structure.LiveNodes()) {
    absl::StatusOr<NodeConfig> config = sharder.Of(n);
    if (!config.ok()) return config.status();
    configs[n] = *std::move(config);
  }
  return configs;
}

std::vector<NodeId> BiasesBlockingSplits(const PcgStructure& structure,
                                         const std::vector<NodeConfig>& configs) {
  const Graph& graph = structure.graph();
  std::vector<NodeId> found;
  for (NodeId n : structure.LiveNodes()) {
    const Node& node = graph.node(n);
    // x, weight, bias.
    if (structure.nodes[n].def->inputs.size() != 3 || node.inputs.size() != 3 ||
        structure.nodes[n].def->inputs[2].name != "bias" || node.inputs[2] == kNoValue) {
      continue;
    }
    const NodeId producer = graph.value(node.inputs[0]).producer;
    if (producer == kNoNode || configs[producer].devices.size() < 2) continue;
    NodeTypes without = structure.nodes[n].types;
    without.inputs[2] = TensorType();
    absl::StatusOr<SplitRule> rule = CompleteSplitRule(*structure.nodes[n].def, without);
    if (!rule.ok()) continue;
    const NodeConfig& config = configs[producer];
    const SplitRule& made = structure.nodes[producer].rule;
    for (size_t k = 0; k < graph.node(producer).outputs.size(); ++k) {
      if (graph.node(producer).outputs[k] != node.inputs[0]) continue;
      for (size_t d = 0; d < made.outputs[k].size(); ++d) {
        const int axis = made.outputs[k][d];
        if (axis == kNotSplit || config.degrees[axis] == 1) continue;
        if (structure.nodes[n].rule.inputs[0][d] == kNotSplit && rule->inputs[0][d] != kNotSplit &&
            rule->axes[rule->inputs[0][d]].size % config.degrees[axis] == 0) {
          found.push_back(n);
        }
      }
    }
  }
  return found;
}

}  // namespace espalier
