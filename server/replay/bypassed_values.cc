#include "server/replay/bypassed_values.h"

#include <algorithm>
#include <map>
#include <vector>

namespace espalier {
namespace {

std::set<std::string> ValueNames(const Graph& graph) {
  std::set<std::string> names;
  for (const Value& value : graph.values()) names.insert(value.name);
  return names;
}

// By name of each value in `kept`: those in `kept` that are computed of it without another one in
// between.
std::map<std::string, std::set<std::string>> NextKept(const Graph& graph,
                                                      const std::set<std::string>& kept) {
  const std::vector<std::vector<std::pair<NodeId, int>>> readers = graph.Consumers();
  std::vector<std::set<std::string>> next(graph.values().size());  // by value
  const auto add = [&](ValueId value, std::set<std::string>* names) {
    const std::string& name = graph.value(value).name;
    if (kept.contains(name)) {
      names->insert(name);
    } else {
      names->insert(next[static_cast<size_t>(value)].begin(),
                    next[static_cast<size_t>(value)].end());
    }
  };
  const auto add_readers = [&](ValueId value) {
    for (const auto& [node, input] : readers[static_cast<size_t>(value)]) {
      for (const ValueId output : graph.node(node).outputs) {
        if (output != kNoValue) add(output, &next[static_cast<size_t>(value)]);
      }
    }
  };
  // Readers of a value come behind its producer.
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    for (const ValueId output : node->outputs) {
      if (output != kNoValue) add_readers(output);
    }
  }
  std::map<std::string, std::set<std::string>> by_name;
  for (const Node& node : graph.nodes()) {
    for (const ValueId output : node.outputs) {
      if (output == kNoValue || !kept.contains(graph.value(output).name)) continue;
      by_name[graph.value(output).name] = std::move(next[static_cast<size_t>(output)]);
    }
  }
  return by_name;
}

}  // namespace

std::set<std::string> BypassedValues(const Graph& original, const Graph& planned) {
  const std::set<std::string> before = ValueNames(original), after = ValueNames(planned);
  std::set<std::string> kept;
  std::set_intersection(before.begin(), before.end(), after.begin(), after.end(),
                        std::inserter(kept, kept.end()));
  std::map<std::string, std::set<std::string>> of_planned = NextKept(planned, kept);
  std::set<std::string> bypassed;
  for (const auto& [name, next] : NextKept(original, kept)) {
    const std::set<std::string>& left = of_planned[name];
    if (!std::includes(left.begin(), left.end(), next.begin(), next.end())) bypassed.insert(name);
  }
  return bypassed;
}

std::optional<std::string> SoleAddend(const Graph& graph, const std::string& value) {
  const ValueId sum = graph.FindValue(value);
  if (sum == kNoValue || graph.value(sum).producer == kNoNode) return std::nullopt;
  const Node& node = graph.node(graph.value(sum).producer);
  if (node.op != "add" && node.op != "add_n") return std::nullopt;
  const auto readers = graph.Consumers();
  for (const ValueId input : node.inputs) {
    const Value& addend = graph.value(input);
    if (addend.kind == ValueKind::kComputed && addend.type == graph.value(sum).type &&
        readers[static_cast<size_t>(input)].size() == 1) {
      return addend.name;
    }
  }
  return std::nullopt;
}

}  // namespace espalier
