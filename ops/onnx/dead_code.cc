#include "ops/onnx/dead_code.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace espalier::onnx_import {

Graph RemoveDeadCode(Graph graph) {
  std::vector<bool> live(graph.values().size(), false), kept(graph.nodes().size(), false);
  for (const auto& [name, value] : graph.outputs) live[value] = true;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    for (ValueId v : node.outputs) kept[n] = kept[n] || live[v];
    if (!kept[n]) continue;
    for (ValueId v : node.inputs) {
      if (v != kNoValue) live[v] = true;
    }
    for (ValueId v : node.outputs) live[v] = true;
  }
  Graph result;
  result.name = graph.name;
  result.metadata = graph.metadata;
  std::vector<ValueId> to(graph.values().size(), kNoValue);
  for (size_t v = 0; v < to.size(); ++v) {
    Value& value = graph.mutable_value(static_cast<ValueId>(v));
    if (!live[v] && value.kind != ValueKind::kInput) continue;
    to[v] = result.AddValue(std::move(value));
  }
  const auto renumber = [&](std::vector<ValueId>* ids) {
    for (ValueId& v : *ids) v = v == kNoValue ? kNoValue : to[v];
  };
  for (size_t n = 0; n < kept.size(); ++n) {
    if (!kept[n]) continue;
    Node node = graph.nodes()[n];
    renumber(&node.inputs);
    renumber(&node.outputs);
    result.AddNode(std::move(node));
  }
  for (const auto& [name, value] : graph.outputs) result.outputs.emplace_back(name, to[value]);
  return result;
}

std::string FirstDifference(const Graph& a, const Graph& b) {
  const size_t nodes = std::min(a.nodes().size(), b.nodes().size());
  for (size_t n = 0; n < nodes; ++n) {
    const Node &one = a.nodes()[n], &other = b.nodes()[n];
    bool same = one.op == other.op && one.attributes == other.attributes &&
                one.inputs == other.inputs && one.outputs == other.outputs;
    for (size_t i = 0; same && i < one.inputs.size(); ++i) {
      const ValueId v = one.inputs[i];
      if (v == kNoValue || a.value(v).kind != ValueKind::kConstant) continue;
      same = b.value(v).type == a.value(v).type && b.value(v).constant == a.value(v).constant;
    }
    if (!same) return one.name;
  }
  bool same = a.nodes().size() == b.nodes().size() && a.outputs == b.outputs;
  for (const auto& [name, v] : a.outputs) {
    same = same && a.value(v).constant == b.value(v).constant;
  }
  return same ? "" : "outputs";
}

}  // namespace espalier::onnx_import
