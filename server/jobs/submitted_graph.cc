#include "server/jobs/submitted_graph.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "ops/graph/graph_proto.h"
#include "server/jobs/match_predictions.h"

namespace espalier {
namespace {

// Makes every scalar output of a submitted graph one that is reported, like a metric. Others are
// results of the model, which training does not compute: notes say so.
absl::Status ReportScalars(const OpRegistry& registry, int64_t batch, Graph* graph,
                           std::vector<std::string>* notes) {
  Graph bound = *graph;
  if (absl::Status status = BindAndInfer(registry, batch, &bound); !status.ok()) return status;
  std::set<std::string> intended;
  if (const auto it = graph->metadata.find(kModelOutputsMetadata); it != graph->metadata.end()) {
    intended = absl::StrSplit(it->second, ',');
  }
  std::set<std::string> names;
  for (const Value& value : bound.values()) names.insert(value.name);
  for (const Node& node : bound.nodes()) names.insert(node.name);
  for (auto& [name, value] : graph->outputs) {
    const Value& output = bound.value(value);
    const OpDef* producer =
        output.producer == kNoNode ? nullptr : registry.Find(bound.node(output.producer).op);
    const bool scalar = output.type.dims.empty();
    if (name == "loss" || (scalar && producer != nullptr && output.producer_output == 0 &&
                           (producer->is_loss || producer->is_metric))) {
      continue;
    }
    if (!scalar) {
      if (intended.count(name) > 0) continue;
      notes->push_back(absl::StrCat("output '", name, "', ", ToString(output.type), kNotComputed));
      continue;
    }
    if (producer == nullptr || output.type.dtype != DType::kF32) {
      return absl::InvalidArgumentError(
          absl::StrCat("output '", name, "' (", ToString(output.type),
                       ") cannot be reported: it must be an f32 scalar that an operator computes"));
    }
    Value report;
    report.name = absl::StrCat(output.name, ".reported");
    while (!names.insert(report.name).second) report.name = absl::StrCat("_", report.name);
    Node node;
    node.name = report.name;
    node.op = "identity_loss";
    node.inputs = {value};
    value = graph->AddValue(std::move(report));
    node.outputs = {value};
    graph->AddNode(std::move(node));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainableGraph> ReadSubmittedGraph(const OpRegistry& registry,
                                                  const v1::Graph& graph, int64_t batch) {
  absl::StatusOr<Graph> read = FromProto(registry, graph);
  if (!read.ok()) return read.status();
  absl::StatusOr<std::vector<std::string>> notes = MatchPredictions(registry, batch, {}, &*read);
  if (!notes.ok()) return notes.status();
  absl::Status status = ReportScalars(registry, batch, &*read, &*notes);
  if (!status.ok()) return status;
  return TrainableGraph{*std::move(read), *std::move(notes)};
}

void NoteUnreached(const OpRegistry& registry, const Graph& graph,
                   std::vector<std::string>* notes) {
  std::vector<bool> reached(graph.values().size(), false);
  reached[static_cast<size_t>(graph.FindOutput("loss"))] = true;
  for (NodeId n = static_cast<NodeId>(graph.nodes().size()) - 1; n >= 0; --n) {
    const Node& node = graph.node(n);
    const bool used = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
      return v != kNoValue && reached[static_cast<size_t>(v)];
    });
    if (!used) continue;
    const OpDef* def = registry.Find(node.op);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId v = node.inputs[i];
      const bool constant = def != nullptr && def->gradient.has_value() &&
                            def->gradient->is_constant(static_cast<int>(i));
      if (v != kNoValue && !constant) reached[static_cast<size_t>(v)] = true;
    }
  }
  constexpr size_t kNamed = 5;
  std::vector<std::string> names;
  for (size_t v = 0; v < reached.size(); ++v) {
    const Value& value = graph.values()[v];
    if (value.kind != ValueKind::kParameter || !value.trainable || reached[v]) continue;
    names.push_back(value.name);
  }
  if (names.empty()) return;
  const size_t count = names.size();
  names.resize(std::min(count, kNamed));
  notes->push_back(absl::StrCat(count,
                                count == 1 ? " parameter that gets no gradient from the loss is"
                                           : " parameters that get no gradient from the loss are",
                                " kept as given: ", absl::StrJoin(names, ", "),
                                count > kNamed ? ", ..." : ""));
}

}  // namespace espalier
