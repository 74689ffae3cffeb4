#include "ops/graph/autodiff.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

class Differentiator {
 public:
  Differentiator(const OpRegistry& registry, const Graph& forward)
      : registry_(registry), forward_(forward) {
    result_.graph = forward;
    result_.first_backward = static_cast<NodeId>(forward.nodes().size());
    result_.gradient_of.assign(forward.values().size(), kNoValue);
  }

  absl::StatusOr<TrainingGraph> Run() {
    result_.loss = forward_.FindOutput("loss");
    if (result_.loss == kNoValue) {
      return absl::InvalidArgumentError(
          absl::StrCat("graph '", forward_.name, "' has no output named 'loss' to minimize"));
    }
    const Value& loss = forward_.value(result_.loss);
    if (!loss.type.dims.empty() || loss.type.dtype != DType::kF32) {
      return absl::InvalidArgumentError(absl::StrCat(
          "loss '", loss.name, "' is ", ToString(loss.type), ", expected an f32 scalar"));
    }
    MarkTrainable();
    if (!trainable_[result_.loss]) {
      return absl::InvalidArgumentError(
          absl::StrCat("loss '", loss.name, "' depends on no trainable parameter"));
    }
    contributions_.resize(forward_.values().size());
    Seed();
    for (NodeId n = result_.first_backward - 1; n >= 0; --n) {
      if (absl::Status status = Backward(n); !status.ok()) return status;
    }
    for (size_t v = 0; v < forward_.values().size(); ++v) {
      const Value& value = forward_.value(static_cast<ValueId>(v));
      if (value.kind != ValueKind::kParameter || !value.trainable) continue;
      const ValueId gradient = GradientOf(static_cast<ValueId>(v));
      if (gradient != kNoValue) {
        result_.gradients.push_back({static_cast<ValueId>(v), gradient});
      }
    }
    return std::move(result_);
  }

 private:
  // trainable_[v]: v depends on a trainable parameter through floating-point values.
  void MarkTrainable() {
    trainable_.assign(forward_.values().size(), false);
    for (size_t v = 0; v < forward_.values().size(); ++v) {
      const Value& value = forward_.value(static_cast<ValueId>(v));
      trainable_[v] = value.kind == ValueKind::kParameter && value.trainable;
    }
    for (const Node& node : forward_.nodes()) {
      const OpDef* def = registry_.Find(node.op);
      bool any = false;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueId v = node.inputs[i];
        any = any || (v != kNoValue && trainable_[v] && !IsConstant(def, i));
      }
      for (ValueId v : node.outputs) {
        trainable_[v] = any && IsFloat(forward_.value(v).type.dtype);
      }
    }
  }

  // Whether the operator counts its input as a constant, so that no gradient flows through it.
  static bool IsConstant(const OpDef* def, size_t input) {
    return def != nullptr && def->gradient.has_value() &&
           def->gradient->is_constant(static_cast<int>(input));
  }

  ValueId NewGradient(ValueId of, const std::string& name) {
    const ValueId id = result_.graph.AddValue({.name = name, .type = forward_.value(of).type});
    result_.gradient_of.push_back(of);
    return id;
  }

  void Seed() {
    const Value& loss = forward_.value(result_.loss);
    const ValueId one = NewGradient(result_.loss, absl::StrCat(loss.name, ".grad"));
    result_.graph.AddNode(
        {.name = absl::StrCat(loss.name, ".grad"),
         .op = "fill",
         .attributes = {{"dims", std::vector<int64_t>{}}, {"value", 1.0}, {"dtype", "f32"}},
         .outputs = {one},
         .forward = loss.producer});
    contributions_[result_.loss].push_back(one);
  }

  // Returns the sum of the gradients from the consumers of `v`; kNoValue if there is none.
  ValueId GradientOf(ValueId v) {
    std::vector<ValueId>& parts = contributions_[v];
    if (parts.empty()) return kNoValue;
    if (parts.size() > 1) {
      const Value& value = forward_.value(v);
      const ValueId sum = NewGradient(v, absl::StrCat(value.name, ".grad"));
      // Consumers were visited last to first; sum in the order of the forward graph.
      result_.graph.AddNode({.name = absl::StrCat(value.name, ".grad"),
                             .op = "add_n",
                             .inputs = {parts.rbegin(), parts.rend()},
                             .outputs = {sum},
                             .forward = value.producer});
      parts = {sum};
    }
    return parts[0];
  }

  // Returns the forward inputs that an entry of a Gradient list stands for (all of a variadic one).
  static std::vector<int> Expand(const OpDef& def, const Node& node, int index) {
    if (index >= static_cast<int>(def.inputs.size()) || !def.inputs[index].variadic) return {index};
    std::vector<int> all;
    for (int i = index; i < static_cast<int>(node.inputs.size()); ++i) all.push_back(i);
    return all;
  }

  static ValueId InputAt(const Node& node, int index) {
    return index < static_cast<int>(node.inputs.size()) ? node.inputs[index] : kNoValue;
  }

  // A gradient of an input that the operator does not give would be dropped.
  absl::Status CheckDifferentiable(const OpDef& def, const Node& node) const {
    std::vector<bool> given(node.inputs.size(), false);
    for (const std::vector<int>* list : {&def.gradient->differentiable, &def.gradient->constants}) {
      for (int index : *list) {
        for (int i : Expand(def, node, index)) {
          if (i < static_cast<int>(given.size())) given[i] = true;
        }
      }
    }
    for (size_t i = 0; i < given.size(); ++i) {
      const ValueId v = node.inputs[i];
      if (given[i] || v == kNoValue || !trainable_[v]) continue;
      const std::string& name = def.inputs[std::min(i, def.inputs.size() - 1)].name;
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(node), ": operator '", node.op, "' has no gradient for its input '",
                       name, "', but the loss depends on trainable parameters through it ('",
                       forward_.value(v).name, "')"));
    }
    return absl::OkStatus();
  }

  absl::Status Backward(NodeId n) {
    const Node& node = forward_.node(n);
    std::vector<ValueId> output_gradients;
    bool reached = false;
    for (ValueId v : node.outputs) {
      const ValueId gradient = trainable_[v] ? GradientOf(v) : kNoValue;
      output_gradients.push_back(gradient);
      reached = reached || gradient != kNoValue;
    }
    const bool wanted = std::any_of(node.inputs.begin(), node.inputs.end(),
                                    [&](ValueId v) { return v != kNoValue && trainable_[v]; });
    if (!reached || !wanted) return absl::OkStatus();
    const OpDef* def = registry_.Find(node.op);
    if (def == nullptr || !def->gradient.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          Describe(node), ": operator '", node.op,
          "' has no gradient, but the loss depends on trainable parameters through it"));
    }
    const std::string refusal =
        def->gradient->refusal ? def->gradient->refusal(node.attributes) : std::string();
    if (!refusal.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(node), ": operator '", node.op, "' has no gradient: ", refusal,
                       "; the loss depends on trainable parameters through it"));
    }
    if (absl::Status status = CheckDifferentiable(*def, node); !status.ok()) return status;
    Node backward{.name = absl::StrCat(node.name, ".grad"),
                  .op = absl::StrCat(node.op, "_grad"),
                  .attributes = node.attributes,
                  .forward = n,
                  .source = node.source};
    const auto needed = [&](bool is_output, int index) {
      return !def->gradient->is_needed ||
             def->gradient->is_needed(node.attributes, is_output, index);
    };
    for (int index : def->gradient->needs_inputs) {
      for (int i : Expand(*def, node, index)) {
        backward.inputs.push_back(needed(false, index) ? InputAt(node, i) : kNoValue);
      }
    }
    for (int k : def->gradient->needs_outputs) {
      backward.inputs.push_back(needed(true, k) ? node.outputs[k] : kNoValue);
    }
    backward.inputs.insert(backward.inputs.end(), output_gradients.begin(), output_gradients.end());
    bool any = false;
    for (int index : def->gradient->differentiable) {
      for (int i : Expand(*def, node, index)) {
        const ValueId v = InputAt(node, i);
        ValueId gradient = kNoValue;
        if (v != kNoValue && trainable_[v]) {
          gradient =
              NewGradient(v, absl::StrCat(forward_.value(v).name, ".grad@", node.name, ".", i));
          contributions_[v].push_back(gradient);
          any = true;
        }
        backward.outputs.push_back(gradient);
      }
    }
    if (any) result_.graph.AddNode(std::move(backward));
    return absl::OkStatus();
  }

  const OpRegistry& registry_;
  const Graph& forward_;
  TrainingGraph result_;
  std::vector<bool> trainable_;
  std::vector<std::vector<ValueId>> contributions_;
};

}  // namespace

absl::StatusOr<TrainingGraph> Differentiate(const OpRegistry& registry, const Graph& graph) {
  return Differentiator(registry, graph).Run();
}

}  // namespace espalier
