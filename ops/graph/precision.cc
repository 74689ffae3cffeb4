#include "ops/graph/precision.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

class Caster {
 public:
  Caster(const OpRegistry& registry, const Graph& graph, DType compute)
      : registry_(registry), graph_(graph), compute_(compute), now_(graph.values().size()) {
    for (const Value& value : graph.values()) names_.insert(value.name);
    for (const Node& node : graph.nodes()) names_.insert(node.name);
  }

  absl::StatusOr<Graph> Run() {
    result_.name = graph_.name;
    result_.metadata = graph_.metadata;
    for (size_t v = 0; v < graph_.values().size(); ++v) {
      Value value = graph_.value(static_cast<ValueId>(v));
      value.producer = kNoNode;
      if (value.kind == ValueKind::kParameter && value.trainable && IsNarrow(value.type.dtype)) {
        Widen(&value);
      }
      now_[v] = result_.AddValue(std::move(value));
    }
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      if (absl::Status status = AddNode(n); !status.ok()) return status;
    }
    for (const auto& [name, value] : graph_.outputs) {
      absl::StatusOr<ValueId> same = As(graph_.value(value).type.dtype, now_[value]);
      if (!same.ok()) return same.status();
      result_.outputs.emplace_back(name, *same);
    }
    return std::move(result_);
  }

 private:
  // Converts the initial elements to f32.
  static void Widen(Value* value) {
    std::string wide;
    wide.reserve(2 * value->constant.size());
    for (size_t at = 0; at + 1 < value->constant.size(); at += 2) {
      uint16_t bits;
      std::memcpy(&bits, &value->constant[at], sizeof(bits));
      const float element = NarrowToF32(value->type.dtype, bits);
      wide.append(reinterpret_cast<const char*>(&element), sizeof(element));
    }
    value->constant = std::move(wide);
    value->type.dtype = DType::kF32;
  }

  DType TypeOf(ValueId v) const { return result_.value(v).type.dtype; }

  // Returns `v` cast to another floating-point type. All readers share one cast.
  absl::StatusOr<ValueId> As(DType type, ValueId v) {
    if (TypeOf(v) == type) return v;
    auto [it, inserted] = casts_.try_emplace({v, type}, kNoValue);
    if (!inserted) return it->second;
    const std::string name = FreeName(absl::StrCat(result_.value(v).name, ".", Name(type)));
    Node node{.name = name, .op = "cast", .attributes = {{"to", std::string(Name(type))}}};
    node.inputs = {v};
    node.outputs = {result_.AddValue({.name = name, .type = result_.value(v).type})};
    it->second = node.outputs[0];
    const NodeId id = result_.AddNode(std::move(node));
    if (absl::Status status = Infer(id); !status.ok()) return status;
    return it->second;
  }

  std::string FreeName(std::string name) {
    while (!names_.insert(name).second) name += "_";
    return name;
  }

  // The type in which `node` reads its floating-point operands; kInvalid: each as written.
  DType OperandType(const OpDef& def, const Node& node) const {
    if (compute_ == DType::kF32) return DType::kInvalid;
    if (def.is_loss || def.is_metric || def.precision == Precision::kF32) return DType::kF32;
    if (def.precision == Precision::kNarrow) return compute_;
    bool any_f32 = false, any_narrow = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!Casts(def, node, i) || IsNumber(node.inputs[i])) continue;
      (IsNarrow(TypeOf(now_[node.inputs[i]])) ? any_narrow : any_f32) = true;
    }
    return any_f32 || !any_narrow ? DType::kF32 : compute_;
  }

  // A literal that f16 can hold does not force f32.
  bool IsNumber(ValueId v) const {
    const Value& value = graph_.value(v);
    if (value.kind != ValueKind::kConstant || value.type.dtype != DType::kF32 ||
        value.constant.size() != sizeof(float)) {
      return false;
    }
    float number;
    std::memcpy(&number, value.constant.data(), sizeof(number));
    return number == 0 || (std::abs(number) >= 0x1p-14f && std::abs(number) <= 65504.0f);
  }

  // Whether input i is present, floating-point and of the compute type.
  bool Casts(const OpDef& def, const Node& node, size_t i) const {
    if (node.inputs[i] == kNoValue || !IsFloat(TypeOf(now_[node.inputs[i]]))) return false;
    return !def.inputs[std::min(i, def.inputs.size() - 1)].own_type;
  }

  absl::Status AddNode(NodeId n) {
    Node node = graph_.node(n);
    const OpDef* def = registry_.Find(node.op);
    if (def == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(Describe(node), ": unknown operator"));
    }
    const DType wanted = OperandType(*def, node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId before = node.inputs[i];
      if (before == kNoValue) continue;
      node.inputs[i] = now_[before];
      if (!Casts(*def, graph_.node(n), i) || node.op == "cast") continue;
      const DType type = wanted == DType::kInvalid ? graph_.value(before).type.dtype : wanted;
      // A master weight is read directly.
      const bool master = i < def->inputs.size() && def->inputs[i].wide && IsNarrow(type) &&
                          result_.value(now_[before]).kind == ValueKind::kParameter &&
                          TypeOf(now_[before]) == DType::kF32;
      if (master) continue;
      absl::StatusOr<ValueId> input = As(type, now_[before]);
      if (!input.ok()) return input.status();
      node.inputs[i] = *input;
    }
    for (ValueId& v : node.outputs) {
      if (v != kNoValue) v = now_[v];
    }
    return Infer(result_.AddNode(std::move(node)));
  }

  absl::Status Infer(NodeId id) {
    const Node& node = result_.node(id);
    NodeTypes types = result_.TypesOf(id);
    types.outputs.clear();
    if (absl::Status status = InferNode(*registry_.Find(node.op), &types); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(Describe(node), ", in ", Name(compute_), ": ",
                                                      status.message()));
    }
    for (size_t k = 0; k < node.outputs.size() && k < types.outputs.size(); ++k) {
      if (node.outputs[k] != kNoValue)
        result_.mutable_value(node.outputs[k]).type = types.outputs[k];
    }
    return absl::OkStatus();
  }

  const OpRegistry& registry_;
  const Graph& graph_;
  const DType compute_;
  Graph result_;
  std::vector<ValueId> now_;     // by value of the graph
  std::set<std::string> names_;  // of values and nodes
  std::map<std::pair<ValueId, DType>, ValueId> casts_;
};

}  // namespace

absl::StatusOr<Graph> WithPrecision(const OpRegistry& registry, const Graph& graph, DType compute) {
  if (!IsFloat(compute)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot train in ", Name(compute), "; accepted: f32, bf16, f16"));
  }
  return Caster(registry, graph, compute).Run();
}

}  // namespace espalier
