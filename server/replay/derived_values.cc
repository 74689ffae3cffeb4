#include "server/replay/derived_values.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "ops/graph/autodiff.h"
#include "ops/graph/graph_proto.h"
#include "ops/probe/reduce.h"
#include "ops/tensor/view.h"
#include "server/replay/evaluate_nodes.h"
#include "server/replay/find_value.h"
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

absl::Status DerivedValues::Differentiate(const OpRegistry& registry) {
  absl::StatusOr<TrainingGraph> training = espalier::Differentiate(registry, graph_);
  if (!training.ok()) return training.status();
  gradient_of_ = std::move(training->gradient_of);
  gradient_.assign(model_values_, kNoValue);
  // Of several with respect to one value, the last is the sum of the others.
  for (size_t v = model_values_; v < gradient_of_.size(); ++v) {
    gradient_[static_cast<size_t>(gradient_of_[v])] = static_cast<ValueId>(v);
  }
  graph_ = std::move(training->graph);
  return absl::OkStatus();
}

ValueId DerivedValues::Find(const ProbeTarget& target) const {
  if (target.kind != ProbeTarget::kValue && target.kind != ProbeTarget::kGrad) return kNoValue;
  const ValueId value = FindProbed(graph_, target.name);
  if (value == kNoValue || static_cast<size_t>(value) >= model_values_) return kNoValue;
  if (target.kind == ProbeTarget::kValue) return value;
  return gradient_.empty() ? kNoValue : gradient_[static_cast<size_t>(value)];
}

std::optional<ProbeTarget> DerivedValues::TargetOf(ValueId id) const {
  const auto number = static_cast<size_t>(id);
  const Value& value = graph_.value(id);
  if (number < model_values_) {
    const bool parameter = value.kind == ValueKind::kParameter;
    return ProbeTarget{parameter ? ProbeTarget::kParam : ProbeTarget::kValue, value.name, ""};
  }
  const ValueId of = gradient_of_[number];
  if (gradient_[static_cast<size_t>(of)] != id) return std::nullopt;
  return ProbeTarget{ProbeTarget::kGrad, graph_.value(of).name, ""};
}

bool DerivedValues::IsRemoved(const ProbeTarget& target, const Readable& readable) const {
  if (target.has_wildcard() || readable(target)) return false;
  if (target.kind == ProbeTarget::kValue) return Find(target) != kNoValue;
  const ValueId of = Find({ProbeTarget::kValue, target.name, ""});
  return target.kind == ProbeTarget::kGrad && of != kNoValue &&
         graph_.value(of).producer != kNoNode;
}

absl::Status DerivedValues::AddNeeds(const OpRegistry& registry, ValueId id,
                                     const Readable& readable, Needs* needs) const {
  const Value& value = graph_.value(id);
  if (value.kind == ValueKind::kConstant) return absl::OkStatus();
  const std::optional<ProbeTarget> target = TargetOf(id);
  if (target.has_value() && readable(*target)) {
    needs->sources.emplace(ToString(*target), *target);
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
  const OpDef* forward = registry.Find(ForwardName(node.op));
  if (op.random || op.is_loss || op.is_metric || (forward != nullptr && forward->is_loss)) {
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(node), " cannot be computed again: ",
                     op.random ? "it draws random numbers within another operator of the plan"
                               : "the plan weights it by examples, in addends"));
  }
  for (const ValueId input : node.inputs) {
    if (input == kNoValue) continue;
    if (absl::Status s = AddNeeds(registry, input, readable, needs); !s.ok()) return s;
  }
  needs->nodes.push_back(value.producer);
  return absl::OkStatus();
}

std::string DerivedValues::NearestReadable(const ProbeTarget& target,
                                           const Readable& readable) const {
  // Values come from operands, gradients from what reads a value.
  const std::vector<std::vector<std::pair<NodeId, int>>> readers = graph_.Consumers();
  std::vector<ValueId> found = {Find({ProbeTarget::kValue, target.name, ""})};
  for (size_t i = 0; i < found.size(); ++i) {
    const Value& value = graph_.value(found[i]);
    const ProbeTarget near{target.kind, value.name, ""};
    if (i > 0 && value.kind == ValueKind::kComputed && readable(near)) {
      return absl::StrCat("; nearest to it there is '", ToString(near), "'");
    }
    std::vector<ValueId> next;
    if (target.kind == ProbeTarget::kGrad) {
      for (const auto& [node, input] : readers[static_cast<size_t>(found[i])]) {
        const std::vector<ValueId>& outputs = graph_.node(node).outputs;
        next.insert(next.end(), outputs.begin(), outputs.end());
      }
    } else if (value.producer != kNoNode) {
      next = graph_.node(value.producer).inputs;
    }
    for (const ValueId id : next) {
      if (id == kNoValue || static_cast<size_t>(id) >= model_values_) continue;
      if (std::find(found.begin(), found.end(), id) == found.end()) found.push_back(id);
    }
  }
  return "";
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
  std::map<std::string, bool> known;  // finding a place takes a pass over the programs
  const auto find = [&points](const ProbeTarget& target) {
    switch (target.kind) {
      case ProbeTarget::kValue:
        return points.Value(target.name).ok();
      case ProbeTarget::kParam:
        return points.Parameter(target.name).ok();
      case ProbeTarget::kGrad:
        return points.Gradient(target.name).ok();
      case ProbeTarget::kBatch:
        return points.Batch(target.name).ok();
      default:
        return false;
    }
  };
  return Make(
      registry, std::move(original),
      [&](const ProbeTarget& target) {
        const auto [readable, is_new] = known.try_emplace(ToString(target), false);
        if (is_new) readable->second = find(target);
        return readable->second;
      },
      probes);
}

absl::StatusOr<DerivedValues> DerivedValues::Make(const OpRegistry& registry, Graph original,
                                                  const Readable& readable,
                                                  const std::vector<ProbeExpression>& probes) {
  DerivedValues made;
  made.graph_ = std::move(original);
  made.model_values_ = made.graph_.values().size();
  const Graph& graph = made.graph_;
  std::vector<const ProbeExpression*> removed;
  bool gradients = false;
  for (const ProbeExpression& probe : probes) {
    bool any = false;
    for (const ProbeTarget& target : probe.targets) {
      const bool is_removed = made.IsRemoved(target, readable);
      any = any || is_removed;
      gradients = gradients || (is_removed && target.kind == ProbeTarget::kGrad);
    }
    if (any) removed.push_back(&probe);
  }
  const absl::Status differentiated = gradients ? made.Differentiate(registry) : absl::OkStatus();
  std::set<std::string> sources;
  int64_t bytes = 0;
  for (const ProbeExpression* const asked : removed) {
    const ProbeExpression& probe = *asked;
    if (probe.reduction.kind == Reduction::kConfusion) {
      // A column of the dataset has the name of the graph's input.
      const ValueId logits = FindProbed(graph, probe.targets[0].name);
      const ValueId labels = FindProbed(graph, probe.targets[1].name);
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
      if (const ValueId value = made.Find(target); value != kNoValue) {
        absl::Status s = made.AddNeeds(registry, value, readable, &needs);
        if (absl::IsFailedPrecondition(s)) {
          s = absl::FailedPreconditionError(
              absl::StrCat(s.message(), made.NearestReadable(target, readable)));
        }
        missing.Update(s);
      } else if (readable(target)) {
        needs.sources.emplace(ToString(target), target);
      } else if (made.IsRemoved(target, readable)) {
        missing.Update(!differentiated.ok() ? differentiated
                                            : absl::NotFoundError(absl::StrCat(
                                                  "'", target.name,
                                                  "' has no gradient: no trained parameter is "
                                                  "behind it, or it does not lead to the loss")));
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
          target.kind == ProbeTarget::kParam ? graph.FindValue(target.name) : made.Find(target);
      if (value == kNoValue) continue;
      made.source_of_.emplace(value, name);
      bytes += graph.value(value).type.bytes();
    }
    for (const ProbeTarget& target : probe.targets) {
      if (!readable(target)) made.values_.insert(ToString(target));
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
  const ValueId value = Find(probe.targets[0]);
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
      const bool known = std::all_of(outputs.begin(), outputs.end(), [&](ValueId output) {
        return output == kNoValue || values.contains(output);
      });
      if (!known) left.push_back(node);
    }
    absl::Status evaluated = EvaluateNodes(graph_, left, training, &values);
    if (!evaluated.ok()) return annotate(evaluated);
    const Reduction& reduction = derived.probe.reduction;
    std::vector<v1::ProbePart> parts;
    for (const ProbeTarget& target : derived.probe.targets) {
      const ValueId value = Find(target);
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
