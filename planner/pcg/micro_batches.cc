#include "planner/pcg/micro_batches.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {
namespace {

// Operators of one sum over several losses: sums of micro-batches pass through them.
bool IsLinear(const Node& node) {
  constexpr absl::string_view kLinear[] = {"add",           "add_n",           "subtract",
                                           "divide_scalar", "multiply_scalar", "identity",
                                           "identity_loss", "stop_gradient"};
  return std::find(std::begin(kLinear), std::end(kLinear), node.op) != std::end(kLinear);
}

class Cutter {
 public:
  Cutter(int parts, const PcgStructure& structure) : parts_(parts), structure_(structure) {}

  // Marks what belongs to the batch.
  absl::Status Find() {
    const Graph& graph = structure_.graph();
    const NodeId forward = structure_.training.first_backward;
    dims_.assign(graph.values().size(), -1);
    axes_.assign(forward, -1);
    consumers_.resize(graph.values().size());
    for (NodeId n = 0; n < forward; ++n) {
      if (structure_.nodes[n].def == nullptr) continue;
      for (ValueId v : graph.node(n).inputs) {
        if (v != kNoValue) consumers_[v].push_back(n);
      }
    }
    for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
      if (graph.value(v).kind != ValueKind::kInput || consumers_[v].empty()) continue;
      if (graph.value(v).type.dims.empty()) {
        return Error(
            absl::StrCat("input '", graph.value(v).name, "' has no dimension of the batch"));
      }
      SetDim(v, 0);
    }
    while (!open_.empty() && error_.ok()) {
      const ValueId v = open_.back();
      open_.pop_back();
      Propagate(v);
    }
    MarkSums();
    return error_;
  }

  absl::Status Check() const {
    for (size_t n = 0; n < axes_.size(); ++n) {
      if (structure_.nodes[n].def == nullptr) continue;
      if (absl::Status status = CheckNode(static_cast<NodeId>(n)); !status.ok()) return status;
    }
    const ValueId loss = structure_.training.loss;
    if (loss == kNoValue || adds_up_[loss]) return absl::OkStatus();
    return Error(absl::StrCat(Name(loss, "tensor"), ", the loss, is no sum over it"));
  }

  void Apply(PcgStructure* structure) {
    Graph& graph = structure->training.graph;
    dims_.resize(graph.values().size(), -1);
    for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
      const ValueId of = structure->training.gradient_of[v];
      if (of != kNoValue) dims_[v] = dims_[of];
      if (dims_[v] >= 0) graph.mutable_value(v).type.dims[dims_[v]] /= parts_;
    }
    for (size_t n = 0; n < axes_.size(); ++n) {
      PcgStructure::NodeInfo& info = structure->nodes[n];
      if (info.def == nullptr) continue;
      info.types = graph.TypesOf(static_cast<NodeId>(n));
      if (axes_[n] >= 0) info.rule.axes[axes_[n]].size /= parts_;
    }
    structure->micro_batches = parts_;
    structure->batch_dims = std::move(dims_);
    structure->adds_up = std::move(adds_up_);
  }

  const std::vector<int>& axes() const { return axes_; }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch cannot be cut into ", parts_, " micro-batches: ", what,
                     "; set micro_batches to 1, or to another number where a size is named"));
  }
  std::string Name(NodeId n) const {
    const Node& node = structure_.graph().node(n);
    return absl::StrCat("operator '", node.name, "' (", node.op, node.source.empty() ? "" : ", ",
                        node.source, ")");
  }
  std::string Name(ValueId v, const char* kind) const {
    return absl::StrCat(kind, " '", structure_.graph().value(v).name, "'");
  }

  void SetDim(ValueId v, int dim) {
    if (dims_[v] == dim || !error_.ok()) return;
    const Value& value = structure_.graph().value(v);
    if (dims_[v] >= 0) {
      error_ = Error(absl::StrCat("dimensions ", dims_[v], " and ", dim, " of ", Name(v, "tensor"),
                                  " both belong to it"));
    } else if (value.kind == ValueKind::kParameter) {
      error_ = Error(absl::StrCat(Name(v, "parameter"), " follows it"));
    } else if (value.kind == ValueKind::kInput && dim != 0) {
      error_ = Error(absl::StrCat(Name(v, "input"), " follows it in dimension ", dim,
                                  ", and inputs are loaded along dimension 0"));
    }
    dims_[v] = dim;
    open_.push_back(v);
  }

  void SetAxis(NodeId n, int axis) {
    if (!error_.ok() || axes_[n] == axis) return;
    const SplitRule& rule = structure_.nodes[n].rule;
    const Node& node = structure_.graph().node(n);
    if (axes_[n] >= 0) {
      error_ = Error(absl::StrCat(Name(n), " follows it along two axes, '",
                                  rule.axes[axes_[n]].name, "' and '", rule.axes[axis].name, "'"));
      return;
    }
    axes_[n] = axis;
    if (rule.axes[axis].size % parts_ != 0) {
      error_ = Error(absl::StrCat("axis '", rule.axes[axis].name, "' of ", Name(n), " has size ",
                                  rule.axes[axis].size));
      return;
    }
    for (const Halo& halo : rule.halos) {
      if (rule.inputs[halo.input][halo.dim] == axis) {
        error_ = Error(absl::StrCat(Name(n), " reads beyond a part of it"));
        return;
      }
    }
    for (const auto& [values, maps] :
         {std::pair(&node.inputs, &rule.inputs), std::pair(&node.outputs, &rule.outputs)}) {
      for (size_t i = 0; i < values->size(); ++i) {
        if ((*values)[i] == kNoValue) continue;
        for (size_t d = 0; d < (*maps)[i].size(); ++d) {
          if ((*maps)[i][d] == axis) SetDim((*values)[i], static_cast<int>(d));
        }
      }
    }
  }

  // Propagates the batch dimension of `v` to its readers and its producer.
  void Propagate(ValueId v) {
    const Graph& graph = structure_.graph();
    const int dim = dims_[v];
    const auto follow = [&](NodeId n, const std::vector<ValueId>& values,
                            const std::vector<std::vector<int>>& maps) {
      for (size_t i = 0; i < values.size() && error_.ok(); ++i) {
        if (values[i] != v) continue;
        if (maps[i][dim] == kNotSplit) {
          error_ = Error(absl::StrCat(Name(n), " needs all of ", Name(v, "tensor"), " at once"));
        } else {
          SetAxis(n, maps[i][dim]);
        }
      }
    };
    for (NodeId n : consumers_[v]) {
      follow(n, graph.node(n).inputs, structure_.nodes[n].rule.inputs);
    }
    const NodeId producer = graph.value(v).producer;
    if (producer != kNoNode) {
      follow(producer, graph.node(producer).outputs, structure_.nodes[producer].rule.outputs);
    }
  }

  bool PassesSums(NodeId n) const {
    const Node& node = structure_.graph().node(n);
    return axes_[n] < 0 && IsLinear(node) &&
           std::all_of(node.inputs.begin(), node.inputs.end(),
                       [this](ValueId v) { return v == kNoValue || adds_up_[v]; });
  }

  void MarkSums() {
    const Graph& graph = structure_.graph();
    adds_up_.assign(graph.values().size(), false);
    for (NodeId n = 0; n < static_cast<NodeId>(axes_.size()); ++n) {
      if (structure_.nodes[n].def == nullptr) continue;
      const bool passes = PassesSums(n);
      for (ValueId v : graph.node(n).outputs) {
        if (v != kNoValue) adds_up_[v] = axes_[n] >= 0 ? dims_[v] < 0 : passes;
      }
    }
  }

  absl::Status CheckNode(NodeId n) const {
    const Graph& graph = structure_.graph();
    for (ValueId v : graph.node(n).inputs) {
      if (v == kNoValue || !adds_up_[v] || PassesSums(n)) continue;
      return Error(absl::StrCat(Name(n), " reads ", Name(v, "tensor"), ", which ",
                                Name(graph.value(v).producer), " sums over it"));
    }
    return absl::OkStatus();
  }

  const int parts_;
  const PcgStructure& structure_;
  std::vector<int> dims_;      // by value
  std::vector<int> axes_;      // by forward node
  std::vector<bool> adds_up_;  // by value
  std::vector<std::vector<NodeId>> consumers_;
  std::vector<ValueId> open_;  // values still to be propagated
  absl::Status error_;
};

}  // namespace

std::vector<int> BatchAxes(const PcgStructure& structure) {
  Cutter cutter(1, structure);
  cutter.Find().IgnoreError();
  return cutter.axes();
}

std::vector<std::pair<ValueId, int>> AccumulatedGradients(const PcgStructure& structure,
                                                          const Placement& placement,
                                                          LayoutTable& layouts,
                                                          const Position& position) {
  const int end = static_cast<int>(structure.positions.size());
  const auto is_gradient = [&](ValueId v) {
    return v != kNoValue && !structure.slots_of_value[v].empty() &&
           structure.slots[structure.slots_of_value[v].back()].position == end;
  };
  const auto resolve = [&](const LayoutRef& ref) {
    return Resolve(structure, placement, layouts, ref);
  };
  std::vector<std::pair<ValueId, int>> added;
  if (position.role == Position::kScatter) {
    const Slot& slot = structure.slots[position.first_slot];
    const int pieces = resolve(slot.required);
    if (is_gradient(slot.value) && pieces != resolve(structure.base[slot.value])) {
      added.emplace_back(slot.value, pieces);
    }
    return added;
  }
  if (position.role == Position::kForward) return added;
  for (ValueId v : structure.graph().node(position.node).outputs) {
    if (!is_gradient(v)) continue;
    const int base = resolve(structure.base[v]);
    bool cut = false;  // sharded as soon as it is produced, and accumulated in shards
    for (int s : structure.slots_of_value[v]) {
      const Slot& slot = structure.slots[s];
      cut = cut ||
            (slot.position < end && structure.positions[slot.position].role == Position::kScatter &&
             resolve(slot.required) != base);
    }
    if (!cut) added.emplace_back(v, base);
  }
  return added;
}

namespace {

absl::Status Cut(int parts, bool only_costs, PcgStructure* structure) {
  if (parts < 1 || parts > kMaxMicroBatches) {
    return absl::InvalidArgumentError(absl::StrCat(
        "micro_batches is ", parts, "; expected 1 to ", kMaxMicroBatches,
        ", as a step's programs and its simulation grow with it; use a smaller batch"));
  }
  if (parts == 1) return absl::OkStatus();
  Cutter cutter(parts, *structure);
  absl::Status status = cutter.Find();
  if (status.ok() && !only_costs) status = cutter.Check();
  if (status.ok()) cutter.Apply(structure);
  if (status.ok() && only_costs) {
    structure->micro_batches = 1;
    structure->batch_dims.clear();
    structure->adds_up.clear();
  }
  return status;
}

}  // namespace

absl::Status SplitIntoMicroBatches(int micro_batches, PcgStructure* structure) {
  return Cut(micro_batches, /*only_costs=*/false, structure);
}

absl::Status SplitBatchForCosts(int parts, PcgStructure* structure) {
  return Cut(parts, /*only_costs=*/true, structure);
}

}  // namespace espalier
