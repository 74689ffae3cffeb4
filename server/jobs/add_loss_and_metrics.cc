#include "server/jobs/add_loss_and_metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

std::string NamesOf(const OpRegistry& registry, bool OpDef::*kind) {
  std::vector<std::string> names;
  for (const OpDef* def : registry.All()) {
    if (def->*kind) names.push_back(def->name);
  }
  return absl::StrJoin(names, ", ");
}

std::string FreeName(const Graph& graph, std::string name) {
  while (graph.FindValue(name) != kNoValue) name = absl::StrCat("_", name);
  return name;
}

// What a loss or metric compares the model's output with; given by its second input's name.
enum class LabelKind { kNothing, kLabels, kTarget };
LabelKind LabelKindOf(const OpDef& def) {
  if (def.inputs.size() < 2) return LabelKind::kNothing;
  return def.inputs[1].name == "labels" ? LabelKind::kLabels : LabelKind::kTarget;
}

// Adds a scalar computed from the model's output and, if needed, the labels.
void AddHead(const OpDef& def, ValueId prediction, ValueId labels, const std::string& output_name,
             Graph* graph) {
  Value value;
  value.name = FreeName(*graph, output_name);
  value.type = {DType::kF32, {}};
  Node node;
  node.name = value.name;
  for (bool free = false; !free;) {
    free = true;
    for (const Node& other : graph->nodes()) free = free && other.name != node.name;
    if (!free) node.name = absl::StrCat("_", node.name);
  }
  const ValueId id = graph->AddValue(std::move(value));
  node.op = def.name;
  node.inputs = {prediction};
  if (LabelKindOf(def) != LabelKind::kNothing) node.inputs.push_back(labels);
  node.outputs = {id};
  graph->AddNode(std::move(node));
  graph->outputs.emplace_back(output_name, id);
}

}  // namespace

absl::Status AddLossAndMetrics(const OpRegistry& registry, const std::string& loss,
                               const std::vector<std::string>& metrics, int64_t batch, DType labels,
                               Graph* graph) {
  const OpDef* def = registry.Find(loss);
  if (def == nullptr || !def->is_loss) {
    return absl::InvalidArgumentError(absl::StrCat(
        "spec.loss '", loss, "' is not a loss; there are: ", NamesOf(registry, &OpDef::is_loss)));
  }
  if (graph->outputs.empty()) {
    return absl::InvalidArgumentError("the ONNX model has no output to put the loss on");
  }
  if (graph->FindValue(kLabelsInput) != kNoValue) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ONNX model has a tensor named '", kLabelsInput,
        "', which is the name of the input that the loss needs; rename it and export again"));
  }
  Graph bound = *graph;
  absl::Status status = BindAndInfer(registry, batch, &bound);
  if (!status.ok()) return status;
  const ValueId prediction = graph->outputs[0].second;
  const TensorType type = bound.value(prediction).type;
  if (type.dims.empty() || type.dims[0] != batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("output '", graph->outputs[0].first, "' of the ONNX model has shape ",
                     ToString(type.dims), "; its first dimension must be the batch of ", batch,
                     " (export the model with a dynamic first dimension)"));
  }
  // The loss determines the labels; if it needs none, the first metric that does.
  std::vector<const OpDef*> heads = {def};
  for (const std::string& metric : metrics) {
    const OpDef* metric_def = registry.Find(metric);
    if (metric_def == nullptr || !(metric_def->is_metric || metric_def->is_loss)) {
      return absl::InvalidArgumentError(
          absl::StrCat("spec.metrics '", metric,
                       "' is not a metric; there are: ", NamesOf(registry, &OpDef::is_metric)));
    }
    heads.push_back(metric_def);
  }
  ValueId input = kNoValue;
  const auto needing = std::find_if(heads.begin(), heads.end(), [](const OpDef* head) {
    return LabelKindOf(*head) != LabelKind::kNothing;
  });
  if (needing != heads.end()) {
    Value value;
    value.name = kLabelsInput;
    value.kind = ValueKind::kInput;
    value.type = type;
    value.type.dims[0] = -1;
    if (LabelKindOf(**needing) == LabelKind::kLabels) {
      value.type.dtype = labels;
      if (type.dims.size() < 2) {
        return absl::InvalidArgumentError(absl::StrCat("output '", graph->outputs[0].first,
                                                       "' has shape ", ToString(type.dims), "; ",
                                                       loss, " needs [batch, ..., classes]"));
      }
      // One class per row. The class dimension is the operator's.
      const bool second = (*needing)->name == "negative_log_likelihood";
      value.type.dims.erase(second ? value.type.dims.begin() + 1 : value.type.dims.end() - 1);
    }
    input = graph->AddValue(std::move(value));
  }
  // A model output of the same name would be mistaken for the loss.
  std::vector<std::string> wanted = metrics;
  wanted.push_back("loss");
  for (auto& [name, id] : graph->outputs) {
    for (const std::string& reserved : wanted) {
      if (name == reserved) name = absl::StrCat("model.", name);
    }
  }
  AddHead(*def, prediction, input, "loss", graph);
  for (size_t i = 0; i < metrics.size(); ++i) {
    AddHead(*heads[i + 1], prediction, input, metrics[i], graph);
  }
  return absl::OkStatus();
}

}  // namespace espalier
