#include "server/jobs/add_example_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/example_weights.h"

namespace espalier {
namespace {

constexpr char kExampleWeights[] = "example_weights";
constexpr char kClassWeights[] = "weights";

// Whether the node is a mean over the whole batch, along dimension 0 of its first input, that can
// be weighted.
bool IsMeanOverBatch(const OpDef& def, const Node& node, const Graph& graph, int64_t batch) {
  if (def.inputs.empty() || def.inputs.back().name != kExampleWeights) return false;
  if (node.inputs.size() >= def.inputs.size() && node.inputs.back() != kNoValue) return false;
  if (node.attributes.String("reduction", "mean") != "mean") return false;
  const Dims& dims = graph.value(node.inputs[0]).type.dims;
  return !dims.empty() && dims[0] == batch;
}

// Returns the value that `id` is another shape or type of (labels [N, 1] for [N]), as long as
// dimension 0 stays.
const Value& SourceOf(ValueId id, const Graph& graph) {
  const Value* value = &graph.value(id);
  while (value->producer != kNoNode) {
    const Node& node = graph.node(value->producer);
    const bool same = node.op == "reshape" || node.op == "flatten" || node.op == "squeeze" ||
                      node.op == "unsqueeze" || node.op == "cast" || node.op == "identity";
    if (!same || node.inputs.size() != 1) break;
    const Value& source = graph.value(node.inputs[0]);
    if (source.type.dims.empty() || source.type.num_elements() != value->type.num_elements() ||
        source.type.dims[0] != value->type.dims[0]) {
      break;
    }
    value = &source;
  }
  return *value;
}

ExampleWeightsColumn ColumnFor(const Node& node, const Graph& graph,
                               const std::map<std::string, std::string>& columns) {
  if (!node.attributes.Has("ignore_index")) return {};
  const Value& labels = SourceOf(node.inputs[1], graph);
  const auto column = columns.find(labels.name);
  if (labels.kind != ValueKind::kInput || column == columns.end()) return {};
  return {column->second, node.attributes.Int("ignore_index")};
}

// Returns the weights of classes that the node multiplies its values with: none if it has none, and
// nullopt if they are not known before the training, or their sum may be no divisor.
std::optional<std::vector<float>> ClassWeightsOf(const OpDef& def, const Node& node,
                                                 const Graph& graph) {
  for (size_t i = 0; i < def.inputs.size() && i < node.inputs.size(); ++i) {
    if (def.inputs[i].name != kClassWeights || node.inputs[i] == kNoValue) continue;
    const Value& value = graph.value(node.inputs[i]);
    if (value.kind != ValueKind::kConstant || value.type.dtype != DType::kF32) return std::nullopt;
    std::vector<float> weights(value.constant.size() / sizeof(float));
    std::memcpy(weights.data(), value.constant.data(), weights.size() * sizeof(float));
    const bool usable = std::all_of(weights.begin(), weights.end(),
                                    [](float w) { return std::isfinite(w) && w >= 0; });
    return usable ? std::optional(std::move(weights)) : std::nullopt;
  }
  return std::vector<float>();
}

// Whether a value is a weighted loss, or a linear combination of some.
bool IsWeighted(ValueId value, const Graph& graph, const std::set<NodeId>& weighted) {
  const NodeId producer = graph.value(value).producer;
  if (producer == kNoNode) return false;
  if (weighted.count(producer) > 0) return true;
  const Node& node = graph.node(producer);
  const auto is_constant = [&](ValueId v) { return graph.value(v).kind == ValueKind::kConstant; };
  const bool scales = node.op == "multiply" || node.op == "divide";
  const bool sums = node.op == "add" || node.op == "add_n" || node.op == "subtract" ||
                    node.op == "multiply_scalar" || node.op == "divide_scalar" ||
                    node.op == "identity" || node.op == "stop_gradient" || node.op == "reshape" ||
                    node.op == "cast";
  if (scales && node.inputs.size() == 2 && is_constant(node.inputs[1])) {
    return IsWeighted(node.inputs[0], graph, weighted);
  }
  return sums && std::all_of(node.inputs.begin(), node.inputs.end(),
                             [&](ValueId v) { return IsWeighted(v, graph, weighted); });
}

std::string FreeInputName(const Graph& graph) {
  std::string name = kExampleWeights;
  for (int i = 2; graph.FindValue(name) != kNoValue; ++i) {
    name = absl::StrCat(kExampleWeights, ".", i);
  }
  return name;
}

}  // namespace

WeightedHeads AddExampleWeights(const OpRegistry& registry, int64_t batch, Graph* graph,
                                std::map<std::string, std::string>* columns) {
  const std::map<std::string, std::string> dataset_columns = *columns;
  std::map<std::string, ValueId> inputs;  // derived column -> graph input
  std::set<NodeId> weighted;
  for (NodeId n = 0; n < static_cast<NodeId>(graph->nodes().size()); ++n) {
    const OpDef* def = registry.Find(graph->node(n).op);
    if (def == nullptr || !IsMeanOverBatch(*def, graph->node(n), *graph, batch)) continue;
    ExampleWeightsColumn derived = ColumnFor(graph->node(n), *graph, dataset_columns);
    if (graph->node(n).attributes.String("mean_over", "all") == "counted") {
      // Weights of classes are in the divisor, too.
      auto class_weights = ClassWeightsOf(*def, graph->node(n), *graph);
      if (derived.labels.empty() || !class_weights.has_value()) continue;
      derived.class_weights = *std::move(class_weights);
    }
    const std::string column = derived.Name();
    auto [input, inserted] = inputs.try_emplace(column, kNoValue);
    if (inserted) {
      Value value;
      value.name = FreeInputName(*graph);
      value.kind = ValueKind::kInput;
      value.type = {DType::kF32, {batch}};
      value.example_weights = true;
      (*columns)[value.name] = column;
      input->second = graph->AddValue(std::move(value));
    }
    Node& node = graph->mutable_node(n);
    node.inputs.resize(def->inputs.size(), kNoValue);
    node.inputs.back() = input->second;
    if (node.attributes.Has("mean_over")) node.attributes.Set("mean_over", std::string("all"));
    weighted.insert(n);
  }
  WeightedHeads heads;
  for (const auto& [name, value] : graph->outputs) {
    const NodeId producer = graph->value(value).producer;
    if (producer == kNoNode) continue;
    const OpDef* def = registry.Find(graph->node(producer).op);
    const bool reported = name == "loss" || (def != nullptr && (def->is_loss || def->is_metric));
    if (!reported || IsWeighted(value, *graph, weighted)) continue;
    if (heads.all) heads.unweighted = name;
    heads.all = false;
  }
  return heads;
}

}  // namespace espalier
