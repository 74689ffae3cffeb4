#include "server/replay/evaluate_nodes.h"

#include <omp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/onnx/cpu_evaluator.h"

namespace espalier {
namespace {

// Kernels that this thread makes and runs have it alone. Workers on the same machine compute
// meanwhile, and threads that wait for each other's parts of small tensors would take their time.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

}  // namespace

absl::Status EvaluateNodes(const Graph& graph, const std::vector<NodeId>& nodes, bool training,
                           std::map<ValueId, std::string>* values) {
  const OneThread one_thread;
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
