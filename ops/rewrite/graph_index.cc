#include "ops/rewrite/graph_index.h"

#include <algorithm>

namespace espalier {

GraphIndex::GraphIndex(const Graph& graph)
    : graph_(graph),
      readers_(graph.Consumers()),
      is_output_(graph.values().size(), false),
      is_trained_(graph.values().size(), false) {
  for (const auto& [name, value] : graph.outputs) is_output_[value] = true;
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const Value& value = graph.value(static_cast<ValueId>(v));
    is_trained_[v] = value.kind == ValueKind::kParameter && value.trainable;
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.node(static_cast<NodeId>(n));
    nodes_[node.op].push_back(static_cast<NodeId>(n));
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId v) { return v != kNoValue && is_trained_[v]; });
    for (ValueId v : node.outputs) {
      if (v != kNoValue) is_trained_[v] = any && IsFloat(graph.value(v).type.dtype);
    }
  }
}

const std::vector<NodeId>& GraphIndex::NodesOf(const std::string& op) const {
  static const auto* const kNone = new std::vector<NodeId>;
  auto it = nodes_.find(op);
  return it == nodes_.end() ? *kNone : it->second;
}

}  // namespace espalier
