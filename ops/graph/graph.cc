#include "ops/graph/graph.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {

ValueId Graph::AddValue(Value value) {
  values_.push_back(std::move(value));
  return static_cast<ValueId>(values_.size()) - 1;
}

NodeId Graph::AddNode(Node node) {
  const NodeId id = static_cast<NodeId>(nodes_.size());
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    if (node.outputs[k] == kNoValue) continue;
    values_[node.outputs[k]].producer = id;
    values_[node.outputs[k]].producer_output = static_cast<int>(k);
  }
  nodes_.push_back(std::move(node));
  return id;
}

ValueId Graph::FindValue(const std::string& name) const {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].name == name) return static_cast<ValueId>(i);
  }
  return kNoValue;
}

ValueId Graph::FindOutput(const std::string& name) const {
  for (const auto& [output, value] : outputs) {
    if (output == name) return value;
  }
  return kNoValue;
}

std::vector<std::vector<std::pair<NodeId, int>>> Graph::Consumers() const {
  std::vector<std::vector<std::pair<NodeId, int>>> consumers(values_.size());
  for (size_t n = 0; n < nodes_.size(); ++n) {
    for (size_t i = 0; i < nodes_[n].inputs.size(); ++i) {
      const ValueId value = nodes_[n].inputs[i];
      if (value != kNoValue) consumers[value].emplace_back(n, i);
    }
  }
  return consumers;
}

NodeTypes Graph::TypesOf(NodeId id) const {
  const Node& node = nodes_[id];
  NodeTypes types;
  types.attributes = node.attributes;
  for (ValueId v : node.inputs) {
    types.inputs.push_back(v == kNoValue ? TensorType{} : values_[v].type);
  }
  for (ValueId v : node.outputs) {
    types.outputs.push_back(v == kNoValue ? TensorType{} : values_[v].type);
  }
  return types;
}

namespace {

absl::Status BindInputs(int64_t batch, Graph* graph) {
  for (size_t i = 0; i < graph->values().size(); ++i) {
    Value& value = graph->mutable_value(static_cast<ValueId>(i));
    if (value.kind == ValueKind::kComputed) continue;
    for (size_t d = 0; d < value.type.dims.size(); ++d) {
      int64_t& dim = value.type.dims[d];
      if (dim >= 0) continue;
      if (value.kind != ValueKind::kInput || d != 0 || dim != -1) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", value.name, "' has shape ", ToString(value.type.dims),
                         "; only dimension 0 of an input may be -1 (the batch)"));
      }
      dim = batch;
    }
    if (value.type.dtype == DType::kInvalid) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", value.name, "' has no element type"));
    }
    if (!value.constant.empty() &&
        value.constant.size() != static_cast<size_t>(value.type.bytes())) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", value.name, "' carries ", value.constant.size(),
                       " bytes, its type ", ToString(value.type), " needs ", value.type.bytes()));
    }
  }
  return absl::OkStatus();
}

absl::Status InferAt(const OpRegistry& registry, NodeId id, Graph* graph) {
  Node& node = graph->mutable_node(id);
  const OpDef* def = registry.Find(node.op);
  if (def == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown operator '", node.op, "'"));
  }
  NodeTypes types = graph->TypesOf(id);
  if (absl::Status status = InferNode(*def, &types); !status.ok()) return status;
  if (types.outputs.size() != node.outputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gives ", types.outputs.size(), " outputs, the node names ", node.outputs.size()));
  }
  node.attributes = std::move(types.attributes);
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    if (node.outputs[k] == kNoValue) continue;
    graph->mutable_value(node.outputs[k]).type = types.outputs[k];
  }
  return absl::OkStatus();
}

}  // namespace

std::string Describe(const Node& node) {
  return absl::StrCat("node '", node.name, "' (", node.op, node.source.empty() ? "" : ", ",
                      node.source, ")");
}

absl::Status BindAndInfer(const OpRegistry& registry, int64_t batch, Graph* graph) {
  if (batch <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch size is ", batch, ", expected a positive number"));
  }
  if (absl::Status status = BindInputs(batch, graph); !status.ok()) return status;
  for (size_t n = 0; n < graph->nodes().size(); ++n) {
    const NodeId id = static_cast<NodeId>(n);
    if (absl::Status status = InferAt(registry, id, graph); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(Describe(graph->node(id)), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
