#include "planner/pcg/structure.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr char kDynamicPrefix[] = "dynamic.";
static_assert(v1::STATIC < v1::ROWS && v1::ROWS < v1::OUTPUT_ROWS);

// Returns the positions of the forward inputs that `index` of a Gradient list denotes (a variadic
// one: all from there on).
std::vector<int> Expand(const OpDef& def, const Node& node, int index) {
  if (index >= static_cast<int>(def.inputs.size()) || !def.inputs[index].variadic) return {index};
  std::vector<int> all;
  for (int i = index; i < static_cast<int>(node.inputs.size()); ++i) all.push_back(i);
  return all;
}

class Builder {
 public:
  Builder(const OpRegistry& registry, const Graph& graph, bool forward_only, int zero_stage,
          bool serving = false)
      : registry_(registry), forward_(graph) {
    out_.registry = &registry;
    out_.serving = serving;
    out_.forward_only = forward_only;
    out_.zero_stage = zero_stage;
  }

  absl::StatusOr<PcgStructure> Run() {
    if (out_.forward_only) {
      out_.training.graph = forward_;
      out_.training.loss = forward_.FindOutput("loss");
      out_.training.first_backward = static_cast<NodeId>(forward_.nodes().size());
      out_.training.gradient_of.assign(forward_.values().size(), kNoValue);
    } else {
      absl::StatusOr<TrainingGraph> training = Differentiate(registry_, forward_);
      if (!training.ok()) return training.status();
      out_.training = *std::move(training);
    }
    out_.base.resize(out_.graph().values().size());
    out_.slots_of_value.resize(out_.graph().values().size());
    out_.casts_parameter.resize(out_.graph().values().size());
    if (absl::Status status = out_.serving ? FindOutputs() : FindReports(); !status.ok()) {
      return status;
    }
    MarkLive();
    if (absl::Status status = AddForward(); !status.ok()) return status;
    for (NodeId n = out_.training.first_backward;
         n < static_cast<NodeId>(out_.graph().nodes().size()); ++n) {
      if (absl::Status status = AddBackward(n); !status.ok()) return status;
    }
    AddGradients();
    CollectDependents();
    return std::move(out_);
  }

 private:
  absl::Status FindReports() {
    for (const auto& [name, value] : forward_.outputs) {
      const Value& v = forward_.value(value);
      const OpDef* producer =
          v.producer == kNoNode ? nullptr : registry_.Find(forward_.node(v.producer).op);
      // A graph may report other losses than the one that is minimized.
      const bool reported = producer != nullptr && v.producer_output == 0 &&
                            (producer->is_metric || (producer->is_loss && v.type.dims.empty()));
      if (name != "loss" && !reported) continue;
      if (v.producer == kNoNode || !v.type.dims.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("output '", name, "' (", ToString(v.type),
                         ") cannot be reported: it must be a scalar that an operator computes"));
      }
      out_.reports.emplace_back(name, value);
    }
    KeepResults();
    if (out_.reports.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "graph '", forward_.name, "' has no output named 'loss' and no metric to compute"));
    }
    return absl::OkStatus();
  }

  // Of a session's graph: what no report shows.
  void KeepResults() {
    const auto kept = forward_.metadata.find(kResultsMetadata);
    if (kept == forward_.metadata.end() || kept->second != kResultsKept) return;
    for (const auto& output : forward_.outputs) {
      const bool computed = forward_.value(output.second).producer != kNoNode;
      const bool reported =
          std::find(out_.reports.begin(), out_.reports.end(), output) != out_.reports.end();
      if (computed && !reported) out_.outputs.push_back(output);
    }
  }

  absl::Status FindOutputs() {
    absl::StatusOr<std::vector<v1::DynamicDimension>> dynamic = FindDynamicDimensions(forward_);
    if (!dynamic.ok()) return dynamic.status();
    out_.dynamic = *std::move(dynamic);
    if (forward_.outputs.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("graph '", forward_.name, "' has no named output to serve"));
    }
    for (const auto& [name, value] : forward_.outputs) {
      if (forward_.value(value).producer == kNoNode) {
        return absl::InvalidArgumentError(
            absl::StrCat("output '", name, "' is computed by no node"));
      }
    }
    out_.outputs = forward_.outputs;
    return absl::OkStatus();
  }

  // A node that writes a state has an effect beyond its outputs.
  bool WritesState(const Node& node) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [this](ValueId v) {
      return v != kNoValue && forward_.value(v).kind == ValueKind::kState;
    });
  }

  void MarkLive() {
    live_.assign(forward_.nodes().size(), false);
    for (const auto* results : {&out_.reports, &out_.outputs}) {
      for (const auto& [name, value] : *results) live_[forward_.value(value).producer] = true;
    }
    for (NodeId n = static_cast<NodeId>(forward_.nodes().size()) - 1; n >= 0; --n) {
      if (out_.serving && WritesState(forward_.node(n))) live_[n] = true;
      if (!live_[n]) continue;
      for (ValueId v : forward_.node(n).inputs) {
        if (v != kNoValue && forward_.value(v).producer != kNoNode) {
          live_[forward_.value(v).producer] = true;
        }
      }
    }
  }

  void AddSlot(ValueId value, LayoutRef required) {
    const int id = static_cast<int>(out_.slots.size());
    out_.slots.push_back({static_cast<int>(out_.positions.size()), value, required});
    if (value != kNoValue) out_.slots_of_value[value].push_back(id);
  }

  absl::Status AddForward() {
    out_.nodes.resize(forward_.nodes().size());
    for (NodeId n = 0; n < static_cast<NodeId>(forward_.nodes().size()); ++n) {
      if (!live_[n]) continue;
      const Node& node = forward_.node(n);
      PcgStructure::NodeInfo& info = out_.nodes[n];
      info.def = registry_.Find(node.op);
      if (info.def == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(Describe(node), ": unknown operator"));
      }
      info.types = forward_.TypesOf(n);
      absl::StatusOr<SplitRule> rule = CompleteSplitRule(*info.def, info.types);
      if (!rule.ok()) return rule.status();
      info.rule = *std::move(rule);

      Position position{Position::kForward, n, n, static_cast<int>(out_.slots.size())};
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueId v = node.inputs[i];
        const LayoutRef required{n, false, static_cast<int>(i)};
        if (v != kNoValue) {
          const Value& value = forward_.value(v);
          if (value.kind == ValueKind::kState && !out_.serving) {
            return absl::InvalidArgumentError(
                absl::StrCat("tensor '", value.name,
                             "' is a state; states are for serving, a graph "
                             "to be trained has none"));
          }
          if (value.kind == ValueKind::kParameter && !out_.serving && !out_.base[v].present()) {
            out_.base[v] = required;
            if (out_.zero_stage == 3 && IsTrained(v)) out_.base[v].mode = LayoutRef::kSharded;
          }
        }
        AddSlot(v, required);
      }
      position.last_slot = static_cast<int>(out_.slots.size());
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        const LayoutRef ref{n, true, static_cast<int>(k)};
        if (node.outputs[k] != kNoValue) out_.base[node.outputs[k]] = ref;
        position.outputs.push_back(ref);
      }
      if (out_.zero_stage == 3 && node.op == "cast" && IsTrained(node.inputs[0])) {
        out_.casts_parameter[node.outputs[0]] = true;
      }
      out_.positions.push_back(std::move(position));
    }
    return absl::OkStatus();
  }

  bool IsTrained(ValueId v) const {
    return forward_.value(v).kind == ValueKind::kParameter && forward_.value(v).trainable;
  }

  // Returns the layout in which forward value `v` was produced or stored.
  LayoutRef BaseDual(ValueId v) const {
    LayoutRef ref = out_.base[v];
    ref.mode = LayoutRef::kDual;
    return ref;
  }

  // Returns the layout in which the update needs the gradient of parameter `v`.
  LayoutRef UpdateRef(ValueId v) const {
    LayoutRef ref = out_.base[v];
    if (out_.zero_stage > 0) ref.mode = LayoutRef::kSharded;
    return ref;
  }

  absl::Status AddBackward(NodeId n) {
    const Node& node = out_.graph().node(n);
    Position position{Position::kBackward, n, node.forward, static_cast<int>(out_.slots.size())};
    if (node.op == "fill" || node.op == "add_n") {
      const ValueId of = out_.training.gradient_of[node.outputs[0]];
      position.role = node.op == "fill" ? Position::kSeed : Position::kGradientSum;
      LayoutRef ref = BaseDual(of);
      if (!ref.present())
        return absl::InternalError(absl::StrCat("node '", node.name, "': no base"));
      if (forward_.value(of).kind == ValueKind::kParameter) {
        PcgStructure::ParameterSum sum;
        sum.target = UpdateRef(of);
        for (ValueId v : node.inputs) sum.contributions.push_back(out_.base[v]);
        ref = {sum.target.node, false, static_cast<int>(out_.sums.size()),
               LayoutRef::kParameterSum};
        out_.sums.push_back(std::move(sum));
      }
      for (ValueId v : node.inputs) AddSlot(v, ref);
      position.outputs = {ref};
      out_.base[node.outputs[0]] = ref;
    } else if (absl::Status status = AddOperands(node, &position); !status.ok()) {
      return status;
    }
    position.last_slot = static_cast<int>(out_.slots.size());
    out_.positions.push_back(std::move(position));
    if (out_.zero_stage >= 2 && out_.positions.back().role == Position::kBackward) AddScatters(n);
    return absl::OkStatus();
  }

  // After gradient node `n`: shards its contributions to parameters' gradients (ZeRO stage 2).
  void AddScatters(NodeId n) {
    const Node& node = out_.graph().node(n);
    const Node& forward = forward_.node(node.forward);
    for (ValueId v : node.outputs) {
      if (v == kNoValue) continue;
      const LayoutRef base = out_.base[v];
      const ValueId of = forward.inputs[base.index];
      if (!IsTrained(of)) continue;
      PcgStructure::GradientShard shard{UpdateRef(of), base};
      Position position{Position::kScatter, kNoNode, kNoNode, static_cast<int>(out_.slots.size())};
      position.outputs = {shard.target};
      AddSlot(v, {shard.target.node, false, static_cast<int>(out_.gradient_shards.size()),
                  LayoutRef::kGradientShard});
      position.last_slot = static_cast<int>(out_.slots.size());
      out_.gradient_shards.push_back(std::move(shard));
      out_.positions.push_back(std::move(position));
    }
  }

  // Operands and results of "x_grad".
  absl::Status AddOperands(const Node& node, Position* position) {
    const Node& forward = forward_.node(node.forward);
    const Gradient& gradient = *out_.nodes[node.forward].def->gradient;
    const OpDef& def = *out_.nodes[node.forward].def;
    std::vector<LayoutRef> inputs, outputs;
    for (int index : gradient.needs_inputs) {
      for (int i : Expand(def, forward, index)) inputs.push_back({node.forward, false, i});
    }
    for (int k : gradient.needs_outputs) {
      inputs.push_back({node.forward, true, k, LayoutRef::kReduced});
    }
    for (int k = 0; k < static_cast<int>(forward.outputs.size()); ++k) {
      inputs.push_back({node.forward, true, k, LayoutRef::kDual});
    }
    for (int index : gradient.differentiable) {
      for (int i : Expand(def, forward, index)) {
        outputs.push_back({node.forward, false, i, LayoutRef::kDual});
      }
    }
    if (inputs.size() != node.inputs.size() || outputs.size() != node.outputs.size()) {
      return absl::InternalError(absl::StrCat("node '", node.name,
                                              "' does not have the operands that the gradient of "
                                              "operator '",
                                              def.name, "' names"));
    }
    for (size_t i = 0; i < inputs.size(); ++i) AddSlot(node.inputs[i], inputs[i]);
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (node.outputs[k] != kNoValue) out_.base[node.outputs[k]] = outputs[k];
    }
    position->outputs = std::move(outputs);
    return absl::OkStatus();
  }

  void AddGradients() {
    for (const TrainingGraph::ParameterGradient& g : out_.training.gradients) {
      out_.gradients.push_back({g.parameter, g.gradient, 0});
    }
    std::stable_sort(
        out_.gradients.begin(), out_.gradients.end(), [&](const auto& a, const auto& b) {
          return out_.graph().value(a.gradient).producer < out_.graph().value(b.gradient).producer;
        });
    for (PcgStructure::GradientInfo& g : out_.gradients) {
      for (ValueId v : {g.parameter, g.gradient}) {
        for (int s : out_.slots_of_value[v]) g.ready = std::max(g.ready, out_.slots[s].position);
      }
      for (size_t p = 0; p < out_.positions.size(); ++p) {
        if (out_.positions[p].node != kNoNode &&
            out_.positions[p].node == out_.graph().value(g.gradient).producer) {
          g.ready = std::max(g.ready, static_cast<int>(p));
        }
      }
      g.slot = static_cast<int>(out_.slots.size());
      AddSlot(g.gradient, UpdateRef(g.parameter));
    }
  }

  void CollectDependents() {
    const int nodes = static_cast<int>(out_.nodes.size());
    std::vector<std::set<ValueId>> values(nodes);
    std::vector<std::set<int>> positions(nodes);
    auto nodes_of = [&](const LayoutRef& ref) {
      std::vector<NodeId> all;
      if (!ref.present()) return all;
      all.push_back(ref.node);
      if (ref.mode == LayoutRef::kParameterSum) {
        for (const LayoutRef& c : out_.sums[ref.index].contributions) all.push_back(c.node);
      }
      if (ref.mode == LayoutRef::kGradientShard)
        all.push_back(out_.gradient_shards[ref.index].base.node);
      return all;
    };
    for (size_t v = 0; v < out_.base.size(); ++v) {
      for (NodeId n : nodes_of(out_.base[v])) values[n].insert(static_cast<ValueId>(v));
      for (int s : out_.slots_of_value[v]) {
        for (NodeId n : nodes_of(out_.slots[s].required)) values[n].insert(static_cast<ValueId>(v));
      }
    }
    for (size_t p = 0; p < out_.positions.size(); ++p) {
      for (const LayoutRef& ref : out_.positions[p].outputs) {
        for (NodeId n : nodes_of(ref)) positions[n].insert(static_cast<int>(p));
      }
    }
    for (int n = 0; n < nodes; ++n) {
      out_.nodes[n].values.assign(values[n].begin(), values[n].end());
      out_.nodes[n].positions.assign(positions[n].begin(), positions[n].end());
    }
  }

  const OpRegistry& registry_;
  const Graph& forward_;
  PcgStructure out_;
  std::vector<bool> live_;
};

}  // namespace

std::vector<NodeId> PcgStructure::LiveNodes() const {
  std::vector<NodeId> live;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].def != nullptr) live.push_back(static_cast<NodeId>(n));
  }
  return live;
}

absl::Status CheckZeroStage(int stage, const std::string& field) {
  if (stage >= 0 && stage <= 3) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", stage,
                   "; accepted: 0 (every replica keeps all), 1 (optimizer state is sharded), 2 "
                   "(gradients too) or 3 (parameters too)"));
}

absl::StatusOr<PcgStructure> BuildStructure(const OpRegistry& registry, const Graph& graph,
                                            bool forward_only, int zero_stage) {
  if (absl::Status status = CheckZeroStage(zero_stage, "zero_stage"); !status.ok()) return status;
  return Builder(registry, graph, forward_only, zero_stage).Run();
}

absl::StatusOr<PcgStructure> BuildServingStructure(const OpRegistry& registry, const Graph& graph) {
  return Builder(registry, graph, /*forward_only=*/true, /*zero_stage=*/0, /*serving=*/true).Run();
}

absl::StatusOr<std::vector<v1::DynamicDimension>> FindDynamicDimensions(const Graph& graph) {
  std::vector<v1::DynamicDimension> dynamic(graph.values().size(), v1::STATIC);
  for (const auto& [key, kind] : graph.metadata) {
    if (key.rfind(kDynamicPrefix, 0) != 0) continue;
    const std::string name = key.substr(sizeof(kDynamicPrefix) - 1);
    const ValueId v = graph.FindValue(name);
    if (v == kNoValue || graph.value(v).kind != ValueKind::kInput ||
        graph.value(v).type.dims.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata '", key, "': '", name, "' is not an input with dimensions"));
    }
    if (kind != "rows" && kind != "output_rows") {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata '", key, "' is '", kind, "', expected 'rows' or 'output_rows'"));
    }
    dynamic[v] = kind == "rows" ? v1::ROWS : v1::OUTPUT_ROWS;
  }
  for (const Node& node : graph.nodes()) {
    v1::DynamicDimension out = v1::STATIC;
    for (ValueId v : node.inputs) {
      if (v != kNoValue) out = std::max(out, dynamic[v]);
    }
    for (ValueId v : node.outputs) {
      if (v != kNoValue && !graph.value(v).type.dims.empty()) dynamic[v] = out;
    }
  }
  return dynamic;
}

}  // namespace espalier
