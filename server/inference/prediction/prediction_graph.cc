#include "server/inference/prediction/prediction_graph.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/graph/fixed_batch.h"
#include "ops/onnx/dead_code.h"
#include "ops/rewrite/fuse.h"
#include "planner/planner.h"
#include "server/jobs/index_ranges.h"

namespace espalier {
namespace {

bool IsLossOrMetric(const OpRegistry& registry, const Graph& graph, const std::string& name,
                    ValueId value) {
  if (name == "loss") return true;
  const Value& output = graph.value(value);
  if (output.producer == kNoNode || output.producer_output != 0) return false;
  const OpDef* producer = registry.Find(graph.node(output.producer).op);
  return producer != nullptr && (producer->is_loss || producer->is_metric);
}

absl::StatusOr<Graph> Bound(const OpRegistry& registry, const Graph& graph, int64_t batch) {
  Graph bound = graph;
  const absl::Status status = BindAndInfer(registry, batch, &bound);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("for batches of ", batch,
                                     batch == 1 ? " example: " : " examples: ", status.message()));
  }
  return bound;
}

// Whether a tensor of `batch` examples in one graph, and of `other` in the other, has one row each.
bool HasRows(const TensorType& type, int64_t batch, const TensorType& same, int64_t other) {
  return !type.dims.empty() && type.dims[0] == batch && same.dims[0] == other &&
         std::equal(type.dims.begin() + 1, type.dims.end(), same.dims.begin() + 1, same.dims.end());
}

TensorType ExampleOf(const TensorType& type) {
  return {type.dtype, {type.dims.begin() + 1, type.dims.end()}};
}

// Returns the node that makes a value which depends on inputs, is needed, and has the same shape
// for every number of examples: it takes them together, as a maximum over the batch does. Null if
// there is none.
const Node* NodeOfWholeBatch(const Graph& first, const Graph& second,
                             const std::vector<bool>& needed) {
  std::vector<bool> depends(first.values().size(), false);
  for (const Node& node : first.nodes()) {
    const bool of_inputs = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
      return v != kNoValue &&
             (depends[static_cast<size_t>(v)] || first.value(v).kind == ValueKind::kInput);
    });
    if (!of_inputs) continue;
    for (const ValueId v : node.outputs) {
      if (v == kNoValue) continue;
      depends[static_cast<size_t>(v)] = true;
      const bool same = first.value(v).type == second.value(v).type;
      // Inference takes the running statistics instead.
      if (node.op == "batch_norm_stats") continue;
      if (same && needed[static_cast<size_t>(v)]) return &node;
    }
  }
  return nullptr;
}

absl::Status WithoutRows(const Value& input) {
  return absl::InvalidArgumentError(absl::StrCat(
      "input '", input.name, "' is ", ToString(input.type),
      "; all inputs that the outputs depend on need one row per example, in dimension 0"));
}

// By value: whether an output depends on it.
std::vector<bool> NeededFor(const Graph& graph) {
  std::vector<bool> needed(graph.values().size(), false);
  for (const auto& [name, value] : graph.outputs) needed[static_cast<size_t>(value)] = true;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    const bool live = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
      return v != kNoValue && needed[static_cast<size_t>(v)];
    });
    if (!live) continue;
    for (const ValueId v : node.inputs) {
      if (v != kNoValue) needed[static_cast<size_t>(v)] = true;
    }
  }
  return needed;
}

}  // namespace

absl::StatusOr<PredictionGraph> MakePredictionGraph(const OpRegistry& registry, Graph graph) {
  PredictionGraph prediction;
  prediction.fixed_batch = FixedBatchOf(graph);
  const int64_t batch = prediction.fixed_batch > 0 ? prediction.fixed_batch : 2;
  const int64_t other = prediction.fixed_batch > 0 ? batch : 3;
  std::vector<std::string> losses, left_out;
  std::erase_if(graph.outputs, [&](const auto& output) {
    if (!IsLossOrMetric(registry, graph, output.first, output.second)) return false;
    losses.push_back(output.first);
    return true;
  });
  // What only the loss reads, as labels in a shape of the training's batch, need not fit.
  graph = onnx_import::RemoveDeadCode(std::move(graph));
  const absl::StatusOr<Graph> first = Bound(registry, graph, batch);
  if (!first.ok()) return first.status();
  const absl::StatusOr<Graph> second = Bound(registry, graph, other);
  if (!second.ok()) return second.status();
  std::erase_if(graph.outputs, [&](const auto& output) {
    const Value& value = first->value(output.second);
    const bool kept = value.producer != kNoNode &&
                      HasRows(value.type, batch, second->value(output.second).type, other);
    if (!kept) left_out.push_back(output.first);
    return !kept;
  });
  if (graph.outputs.empty()) {
    for (const Value& value : graph.values()) {
      const bool input = value.kind == ValueKind::kInput && !value.type.dims.empty();
      if (input && prediction.fixed_batch == 0 && value.type.dims[0] > 0) {
        return WithoutRows(value);
      }
    }
    losses.insert(losses.end(), left_out.begin(), left_out.end());
    return absl::InvalidArgumentError(absl::StrCat(
        "the graph has no named output with one row per example",
        losses.empty() ? "" : absl::StrCat(" besides ", absl::StrJoin(losses, ", ")),
        ": give its predictions a name as an output of the graph, and train or export it again"));
  }
  for (const auto& [name, value] : graph.outputs) {
    prediction.signature.outputs.push_back({name, ExampleOf(first->value(value).type)});
  }
  const std::vector<bool> needed = NeededFor(graph);
  const std::map<std::string, std::vector<InputRange>> accepted = IndexRanges(registry, *first);
  for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
    if (!needed[static_cast<size_t>(v)]) continue;
    const Value& value = first->value(v);
    if (value.kind == ValueKind::kParameter) prediction.parameters += value.type.num_elements();
    if (value.kind != ValueKind::kInput) continue;
    if (!HasRows(value.type, batch, second->value(v).type, other)) {
      return WithoutRows(graph.value(v));
    }
    GraphTensorType& input = prediction.signature.inputs.emplace_back();
    input.name = value.name;
    input.example = ExampleOf(value.type);
    const auto ranges = accepted.find(value.name);
    if (ranges == accepted.end()) continue;
    for (const InputRange& range : ranges->second) {
      input.accepted.push_back({range.range.low, range.range.high, range.reader});
    }
  }
  if (!left_out.empty()) {
    prediction.notes.push_back(
        absl::StrCat("left out, as they are inputs or not computed for each example: ",
                     absl::StrJoin(left_out, ", ")));
  }
  if (prediction.fixed_batch == 0) {
    const Node* node = NodeOfWholeBatch(*first, *second, needed);
    if (node != nullptr) prediction.whole_batch = Describe(*node);
  }
  for (const Node& node : graph.nodes()) {
    if (node.op != "random_like") continue;
    prediction.notes.push_back(absl::StrCat(
        Describe(node), " draws the same random numbers in every pass, by the place in the batch"));
    break;
  }
  if (prediction.signature.inputs.empty()) {
    return absl::InvalidArgumentError("the graph's outputs depend on none of its inputs");
  }
  prediction.graph = std::move(graph);
  return prediction;
}

absl::StatusOr<v1::Program> LowerPrediction(const OpRegistry& registry,
                                            const PredictionGraph& prediction, int64_t batch) {
  absl::StatusOr<Graph> bound = Bound(registry, prediction.graph, batch);
  if (!bound.ok()) return bound.status();
  const absl::StatusOr<Graph> fused = Fuse(registry, *bound);
  if (!fused.ok()) return fused.status();
  absl::StatusOr<v1::Program> program = LowerServing(registry, *fused);
  if (!program.ok()) return program.status();
  // Library kernels: an answer may differ in its last bits with the size of its pass.
  program->set_batch_invariant(false);
  return program;
}

}  // namespace espalier
