#include "server/replay/derived_values.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/probe/reduce.h"
#include "ops/tensor/view.h"
#include "server/replay/evaluate_nodes.h"
#include "server/replay/source_rows.h"

namespace espalier {
namespace {

constexpr int64_t kMostSourceBytes = 256 << 20;

absl::StatusOr<v1::ProbePart> WholePart(const Reduction& reduction, const TensorType& type,
                                        std::string elements) {
  PartReducer reducer(reduction, type.dtype, type.dims, /*adds_up=*/false, /*only_part=*/true);
  absl::Status s = reducer.Add({elements.data(), TensorSpec::Whole(type)});
  if (!s.ok()) return s;
  return reducer.Take();
}

}  // namespace

absl::Status DerivedValues::AddNeeds(const OpRegistry& registry, ValueId id,
                                     const Readable& readable, Needs* needs) const {
  const Value& value = graph_.value(id);
  if (value.kind == ValueKind::kConstant) return absl::OkStatus();
  const ProbeTarget target{
      value.kind == ValueKind::kParameter ? ProbeTarget::kParam : ProbeTarget::kValue, value.name,
      ""};
  if (readable(target)) {
    needs->sources.emplace(ToString(target), target);
    return absl::OkStatus();
  }
  if (value.producer == kNoNode) {
    return absl::NotFoundError(absl::StrCat("the programs do not have '", value.name, "'"));
  }
  if (std::find(needs->nodes.begin(), needs->nodes.end(), value.producer) != needs->nodes.end()) {
    return absl::OkStatus();
  }
  const Node& node = graph_.node(value.producer);
  const OpDef& op = *registry.Find(node.op);
  if (op.random || op.is_loss || op.is_metric) {
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(node), " cannot be computed again: ",
        op.random ? "it draws random numbers within another operator of the plan"
                  : "the plan weights it by examples, in addends; ask for what it is made of"));
  }
  for (const ValueId input : node.inputs) {
    if (input == kNoValue) continue;
    if (absl::Status s = AddNeeds(registry, input, readable, needs); !s.ok()) return s;
  }
  needs->nodes.push_back(value.producer);
  return absl::OkStatus();
}

absl::StatusOr<Graph> GraphBeforeRewrites(const OpRegistry& registry, const Graph& model,
                                          const Graph& planned, int64_t batch_size) {
  Graph graph = model;
  for (size_t v = 0; v < graph.values().size(); ++v) {
    Value& value = graph.mutable_value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kInput) continue;
    // Its dimensions may have been fitted to the dataset.
    const ValueId fitted = planned.FindValue(value.name);
    if (fitted != kNoValue) value.type.dims = planned.value(fitted).type.dims;
  }
  if (absl::Status s = BindAndInfer(registry, batch_size, &graph); !s.ok()) return s;
  return graph;
}

absl::StatusOr<DerivedValues> DerivedValues::Make(const OpRegistry& registry, Graph original,
                                                  const ProbePoints& points,
                                                  const std::vector<ProbeExpression>& probes) {
  return Make(
      registry, std::move(original),
      [&points](const ProbeTarget& target) {
        switch (target.kind) {
          case ProbeTarget::kValue:
            return points.Value(target.name).ok();
          case ProbeTarget::kParam:
            return points.Parameter(target.name).ok();
          case ProbeTarget::kBatch:
            return points.Batch(target.name).ok();
          default:
            return false;
        }
      },
      probes);
}

absl::StatusOr<DerivedValues> DerivedValues::Make(const OpRegistry& registry, Graph original,
                                                  const Readable& readable,
                                                  const std::vector<ProbeExpression>& probes) {
  DerivedValues made;
  made.graph_ = std::move(original);
  const Graph& graph = made.graph_;
  const auto value_of = [&graph](const ProbeTarget& target) {
    return target.kind == ProbeTarget::kValue ? graph.FindValue(target.name) : kNoValue;
  };
  std::set<std::string> sources;
  int64_t bytes = 0;
  for (const ProbeExpression& probe : probes) {
    const bool derived =
        std::any_of(probe.targets.begin(), probe.targets.end(), [&](const ProbeTarget& target) {
          return !target.has_wildcard() && value_of(target) != kNoValue && !readable(target);
        });
    if (!derived) continue;
    if (probe.reduction.kind == Reduction::kConfusion) {
      // A column of the dataset has the name of the graph's input.
      const ValueId logits = graph.FindValue(probe.targets[0].name);
      const ValueId labels = graph.FindValue(probe.targets[1].name);
      absl::Status s;
      if (logits != kNoValue && labels != kNoValue) {
        s = CheckConfusion(graph.value(logits).type, graph.value(labels).type);
      }
      if (!s.ok()) {
        return absl::Status(s.code(), absl::StrCat("'", ToString(probe), "': ", s.message()));
      }
    }
    Needs needs;
    absl::Status missing;
    for (const ProbeTarget& target : probe.targets) {
      if (const ValueId value = value_of(target); value != kNoValue) {
        missing.Update(made.AddNeeds(registry, value, readable, &needs));
      } else if (readable(target)) {
        needs.sources.emplace(ToString(target), target);
      } else {
        missing.Update(
            absl::NotFoundError(absl::StrCat("the programs do not have '", ToString(target), "'")));
      }
    }
    if (missing.ok() && needs.sources.empty()) {
      missing = absl::FailedPreconditionError("the same in each step: it is made of constants");
    }
    if (!missing.ok()) {
      made.lacking_.emplace_back(ToString(probe), missing);
      continue;
    }
    for (const auto& [name, target] : needs.sources) {
      if (!sources.insert(name).second) continue;
      made.sources_.push_back({{target}, Reduction{Reduction::kFull}});
      const ValueId value =
          target.kind == ProbeTarget::kBatch ? kNoValue : graph.FindValue(target.name);
      if (value == kNoValue) continue;
      made.source_of_.emplace(value, name);
      bytes += graph.value(value).type.bytes();
    }
    for (const ProbeTarget& target : probe.targets) {
      if (!readable(target)) made.values_.insert(target.name);
    }
    made.derived_.push_back({probe, std::move(needs.nodes)});
  }
  if (bytes > kMostSourceBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "values that the plan computes within other operators would be computed again from ", bytes,
        " bytes in each step, more than ", kMostSourceBytes, "; ask for fewer of them"));
  }
  return made;
}

std::vector<ProbeExpression> DerivedValues::probes() const {
  std::vector<ProbeExpression> probes;
  for (const Derived& derived : derived_) probes.push_back(derived.probe);
  return probes;
}

std::optional<TensorType> DerivedValues::TypeOf(const ProbeExpression& probe) const {
  const ProbeTarget& target = probe.targets[0];
  const ValueId value =
      target.kind == ProbeTarget::kValue ? graph_.FindValue(target.name) : kNoValue;
  if (value == kNoValue) return std::nullopt;
  return graph_.value(value).type;
}

absl::StatusOr<std::vector<v1::HistoryRow>> DerivedValues::Complete(
    std::vector<v1::HistoryRow> rows, int64_t step, bool training) const {
  absl::StatusOr<std::map<std::string, v1::TensorValue>> given =
      TakeSourceRows(sources_, step, &rows);
  if (!given.ok()) return given.status();
  std::map<ValueId, std::string> values;
  for (const auto& [value, name] : source_of_) {
    absl::StatusOr<std::string> elements =
        ElementsAs(given->at(name), graph_.value(value).type, name);
    if (!elements.ok()) return elements.status();
    values[value] = *std::move(elements);
  }
  for (const Derived& derived : derived_) {
    const auto annotate = [&](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat(ToString(derived.probe), " of step ", step,
                                                      ": ", status.message()));
    };
    std::vector<NodeId> left;  // to evaluate
    for (const NodeId node : derived.nodes) {
      const std::vector<ValueId>& outputs = graph_.node(node).outputs;
      const bool known = std::all_of(outputs.begin(), outputs.end(),
                                     [&](ValueId output) { return values.contains(output); });
      if (!known) left.push_back(node);
    }
    absl::Status evaluated = EvaluateNodes(graph_, left, training, &values);
    if (!evaluated.ok()) return annotate(evaluated);
    const Reduction& reduction = derived.probe.reduction;
    std::vector<v1::ProbePart> parts;
    for (const ProbeTarget& target : derived.probe.targets) {
      const ValueId value =
          target.kind == ProbeTarget::kValue ? graph_.FindValue(target.name) : kNoValue;
      absl::StatusOr<v1::ProbePart> part;
      if (value != kNoValue) {
        part = WholePart(reduction, graph_.value(value).type, values.at(value));
      } else {
        const v1::TensorValue& tensor = given->at(ToString(target));
        part =
            WholePart(reduction,
                      {FromProto(tensor.dtype()), Dims(tensor.dims().begin(), tensor.dims().end())},
                      tensor.data());
      }
      if (!part.ok()) return annotate(part.status());
      parts.push_back(*std::move(part));
    }
    absl::StatusOr<v1::ProbeValue> value =
        reduction.kind == Reduction::kConfusion
            ? FinishConfusion({std::move(parts[0])}, {std::move(parts[1])})
            : Finish(reduction, std::move(parts), /*adds_up=*/false);
    if (!value.ok()) return annotate(value.status());
    v1::HistoryRow& row = rows.emplace_back();
    row.set_step(step);
    row.set_name(TargetsToString(derived.probe));
    row.set_reduction(ToString(reduction));
    row.set_source(v1::HistoryRow::REPLAY);
    *row.mutable_value() = *std::move(value);
  }
  return rows;
}

}  // namespace espalier
