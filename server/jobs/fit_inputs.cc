#include "server/jobs/fit_inputs.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

Dims DimsButOnes(Dims dims) {
  dims.erase(std::remove(dims.begin(), dims.end(), 1), dims.end());
  return dims;
}

// The dimensions of size 1 behind the first.
std::vector<int64_t> AxesOfOnes(const Dims& dims) {
  std::vector<int64_t> axes;
  for (size_t d = 1; d < dims.size(); ++d) {
    if (dims[d] == 1) axes.push_back(static_cast<int64_t>(d));
  }
  return axes;
}

std::string FreeNameFor(const Graph& graph, std::string name) {
  const auto taken = [&](const std::string& candidate) {
    return graph.FindValue(candidate) != kNoValue ||
           std::any_of(graph.nodes().begin(), graph.nodes().end(),
                       [&](const Node& node) { return node.name == candidate; });
  };
  while (taken(name)) name = absl::StrCat("_", name);
  return name;
}

struct Refit {
  ValueId input;
  Dims wanted;  // by the readers
};

// Adds one operator on `from` and returns its output.
ValueId AddAxesNode(const std::string& op, const std::string& name, ValueId from,
                    const std::vector<int64_t>& axes, Dims dims, Graph* graph) {
  Value value;
  value.name = name;
  value.type = {graph->value(from).type.dtype, std::move(dims)};
  const ValueId id = graph->AddValue(std::move(value));
  graph->AddNode(
      {.name = name, .op = op, .attributes = {{"axes", axes}}, .inputs = {from}, .outputs = {id}});
  return id;
}

}  // namespace

absl::Status FitInputs(const OpRegistry& registry,
                       const std::map<std::string, std::string>& columns, const Dataset& dataset,
                       Graph* graph) {
  std::vector<Refit> refits;
  for (ValueId v = 0; v < static_cast<ValueId>(graph->values().size()); ++v) {
    Value& value = graph->mutable_value(v);
    if (value.kind != ValueKind::kInput || value.type.dims.empty()) continue;
    const absl::StatusOr<const Column*> column = dataset.Find(columns.at(value.name));
    if (!column.ok()) continue;
    const Dims wanted = value.type.dims;
    const Dims of_example(wanted.begin() + 1, wanted.end());
    const Dims& given = (*column)->example.dims;
    if (of_example == given || DimsButOnes(of_example) != DimsButOnes(given)) continue;
    value.type.dims = {wanted[0]};
    value.type.dims.insert(value.type.dims.end(), given.begin(), given.end());
    refits.push_back({v, wanted});
  }
  if (refits.empty()) return absl::OkStatus();
  // Nodes are kept in topological order, so the new ones go first.
  Graph fitted;
  fitted.name = graph->name;
  fitted.metadata = graph->metadata;
  for (const Value& value : graph->values()) fitted.AddValue(value);
  std::map<ValueId, ValueId> instead;
  for (const Refit& refit : refits) {
    const std::string name = graph->value(refit.input).name;
    const Dims fed = graph->value(refit.input).type.dims;
    Dims dims = {fed[0]};
    const Dims rest = DimsButOnes(Dims(fed.begin() + 1, fed.end()));
    dims.insert(dims.end(), rest.begin(), rest.end());
    ValueId last = refit.input;
    if (const std::vector<int64_t> ones = AxesOfOnes(fed); !ones.empty()) {
      last = AddAxesNode("squeeze", FreeNameFor(*graph, absl::StrCat(name, ".squeezed")), last,
                         ones, dims, &fitted);
    }
    if (const std::vector<int64_t> ones = AxesOfOnes(refit.wanted); !ones.empty()) {
      last = AddAxesNode("unsqueeze", FreeNameFor(*graph, absl::StrCat(name, ".unsqueezed")), last,
                         ones, refit.wanted, &fitted);
    }
    instead[refit.input] = last;
  }
  const auto replaced = [&](ValueId v) {
    const auto found = instead.find(v);
    return found == instead.end() ? v : found->second;
  };
  for (Node node : graph->nodes()) {
    for (ValueId& v : node.inputs) v = replaced(v);
    fitted.AddNode(std::move(node));
  }
  for (const auto& [name, v] : graph->outputs) fitted.outputs.emplace_back(name, replaced(v));
  *graph = std::move(fitted);
  return BindAndInfer(registry, 1, graph);  // no dimension is unknown
}

}  // namespace espalier
