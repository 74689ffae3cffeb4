#include "server/replay/evaluate_nodes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/onnx/cpu_evaluator.h"

namespace espalier {

absl::Status EvaluateNodes(const Graph& graph, const std::vector<NodeId>& nodes, bool training,
                           std::map<ValueId, std::string>* values) {
  const Evaluator evaluate = CpuEvaluator(training);
  for (const NodeId id : nodes) {
    const Node& node = graph.node(id);
    std::vector<const std::string*> inputs;
    for (const ValueId input : node.inputs) {
      const bool constant = input != kNoValue && graph.value(input).kind == ValueKind::kConstant;
      inputs.push_back(input == kNoValue ? nullptr
                       : constant        ? &graph.value(input).constant
                                         : &values->at(input));
    }
    absl::StatusOr<std::vector<std::string>> results = evaluate(node.op, graph.TypesOf(id), inputs);
    if (!results.ok()) {
      return absl::Status(results.status().code(),
                          absl::StrCat(Describe(node), ": ", results.status().message()));
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (node.outputs[o] != kNoValue) (*values)[node.outputs[o]] = std::move((*results)[o]);
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
