#include "server/replay/graph_fragments.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "server/replay/evaluate_nodes.h"
#include "server/replay/source_rows.h"

namespace espalier {
namespace {

absl::Status BadFragment(const Graph& fragment, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("fragment '", fragment.name, "': ", what));
}

// Of all values of a fragment: it comes from outside, and an operator can make much of little.
constexpr double kMostFragmentBytes = 1 << 30;

absl::Status CheckSize(const Graph& graph) {
  double bytes = 0;
  for (const Value& value : graph.values()) {
    double elements = 1;
    for (const int64_t extent : value.type.dims) elements *= static_cast<double>(extent);
    bytes += elements * static_cast<double>(SizeOf(value.type.dtype));
  }
  if (bytes <= kMostFragmentBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("its values have ", bytes, " bytes; accepted: ", kMostFragmentBytes));
}

absl::StatusOr<ProbeExpression> SourceOf(const std::string& input) {
  absl::StatusOr<ProbeExpression> probe = ParseProbe(input);
  if (!probe.ok()) return probe.status();
  if (probe->reduction.kind != Reduction::kFull || probe->targets.size() != 1 ||
      probe->targets[0].has_wildcard()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", input,
                     "' is not one tensor; accepted: names such as relu_1, and param, "
                     "grad, update, state and batch of one"));
  }
  return probe;
}

}  // namespace

absl::StatusOr<GraphFragments> GraphFragments::Make(const OpRegistry& registry,
                                                    std::vector<Graph> fragments) {
  GraphFragments made(&registry);
  for (Graph& fragment : fragments) {
    if (absl::Status s = made.Add(std::move(fragment)); !s.ok()) return s;
  }
  return made;
}

absl::Status GraphFragments::Add(Graph fragment) {
  for (const Value& value : fragment.values()) {
    if (value.kind == ValueKind::kParameter || value.kind == ValueKind::kState) {
      return BadFragment(fragment, absl::StrCat("'", value.name,
                                                "' is a parameter; accepted: an "
                                                "input named param(",
                                                value.name, ")"));
    }
    if (value.kind != ValueKind::kInput) continue;
    absl::StatusOr<ProbeExpression> source = SourceOf(value.name);
    if (!source.ok()) return BadFragment(fragment, source.status().message());
    if (std::find(sources_.begin(), sources_.end(), *source) == sources_.end()) {
      sources_.push_back(*std::move(source));
    }
  }
  for (const Node& node : fragment.nodes()) {
    const OpDef* op = registry_->Find(node.op);
    if (op == nullptr) return BadFragment(fragment, absl::StrCat("no operator '", node.op, "'"));
    if (op->random) return BadFragment(fragment, Describe(node) + " draws random numbers");
  }
  if (fragment.outputs.empty()) return BadFragment(fragment, "it has no output");
  for (const auto& [name, value] : fragment.outputs) {
    for (const Graph& other : fragments_) {
      if (other.FindOutput(name) == kNoValue) continue;
      return BadFragment(fragment, absl::StrCat("another one has an output '", name, "', too"));
    }
  }
  fragments_.push_back(std::move(fragment));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::HistoryRow>> GraphFragments::Complete(
    std::vector<v1::HistoryRow> rows, int64_t step) const {
  absl::StatusOr<std::map<std::string, v1::TensorValue>> given =
      TakeSourceRows(sources_, step, &rows);
  if (!given.ok()) return given.status();
  for (const Graph& fragment : fragments_) {
    Graph graph = fragment;
    std::map<ValueId, std::string> values;
    for (size_t v = 0; v < graph.values().size(); ++v) {
      const auto id = static_cast<ValueId>(v);
      Value& value = graph.mutable_value(id);
      if (value.kind != ValueKind::kInput) continue;
      absl::StatusOr<ProbeExpression> source = SourceOf(value.name);
      if (!source.ok()) return source.status();
      const v1::TensorValue& tensor = given->at(TargetsToString(*source));
      value.type = {FromProto(tensor.dtype()), Dims(tensor.dims().begin(), tensor.dims().end())};
      values[id] = tensor.data();
    }
    absl::Status evaluated = BindAndInfer(*registry_, /*batch=*/1, &graph);
    if (evaluated.ok()) evaluated = CheckSize(graph);
    std::vector<NodeId> nodes;
    for (size_t n = 0; n < graph.nodes().size(); ++n) nodes.push_back(static_cast<NodeId>(n));
    if (evaluated.ok()) evaluated = EvaluateNodes(graph, nodes, /*training=*/false, &values);
    if (!evaluated.ok()) {
      return absl::Status(evaluated.code(), absl::StrCat("fragment '", graph.name, "', step ", step,
                                                         ": ", evaluated.message()));
    }
    for (const auto& [name, id] : graph.outputs) {
      const Value& value = graph.value(id);
      v1::HistoryRow& row = rows.emplace_back();
      row.set_step(step);
      row.set_name(name);
      row.set_reduction(ToString(Reduction{Reduction::kFull}));
      row.set_source(v1::HistoryRow::REPLAY);
      v1::TensorValue* tensor = row.mutable_value()->mutable_tensor();
      tensor->set_dtype(ToProto(value.type.dtype));
      tensor->mutable_dims()->Assign(value.type.dims.begin(), value.type.dims.end());
      tensor->set_data(value.kind == ValueKind::kConstant ? value.constant : values.at(id));
    }
  }
  return rows;
}

}  // namespace espalier
