#include "server/replay/derived_values.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/graph/graph_proto.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/probe/reduce.h"
#include "ops/tensor/half_conversion.h"
#include "ops/tensor/view.h"

namespace espalier {
namespace {

constexpr int64_t kMostSourceBytes = 256 << 20;

// The elements of a row's tensor in the type of the original value: of 16 bits if the plan computes
// so.
absl::StatusOr<std::string> ElementsAs(const v1::TensorValue& tensor, const TensorType& type,
                                       const std::string& name) {
  const DType dtype = FromProto(tensor.dtype());
  const Dims dims(tensor.dims().begin(), tensor.dims().end());
  if (dims == type.dims &&
      tensor.data().size() == static_cast<size_t>(TensorSpec::Whole({dtype, dims}).bytes())) {
    if (dtype == type.dtype) return tensor.data();
    if (IsNarrow(dtype) && type.dtype == DType::kF32) {
      std::string wide(static_cast<size_t>(type.bytes()), '\0');
      for (int64_t i = 0; i < NumElements(dims); ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, tensor.data().data() + i * 2, sizeof(bits));
        const float element = NarrowToF32(dtype, bits);
        std::memcpy(wide.data() + i * 4, &element, sizeof(element));
      }
      return wide;
    }
  }
  return absl::InternalError(absl::StrCat("'", name, "' is ", ToString(TensorType{dtype, dims}),
                                          ", in the model ", ToString(type)));
}

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
  if (registry.Find(node.op)->random) {
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(node),
                     " draws random numbers within another operator of the plan, so that its "
                     "result cannot be computed again"));
  }
  for (const ValueId input : node.inputs) {
    if (input == kNoValue) continue;
    if (absl::Status s = AddNeeds(registry, input, readable, needs); !s.ok()) return s;
  }
  needs->nodes.push_back(value.producer);
  return absl::OkStatus();
}

absl::StatusOr<DerivedValues> DerivedValues::Make(const OpRegistry& registry, const Graph& original,
                                                  const Readable& readable,
                                                  const std::vector<ProbeExpression>& probes) {
  DerivedValues made;
  made.graph_ = original;
  std::map<std::string, ProbeTarget> sources;
  int64_t bytes = 0;
  for (const ProbeExpression& probe : probes) {
    Needs needs;
    absl::Status missing;
    for (const ProbeTarget& target : probe.targets) {
      const ValueId value =
          target.kind == ProbeTarget::kValue ? original.FindValue(target.name) : kNoValue;
      if (value != kNoValue) {
        missing.Update(made.AddNeeds(registry, value, readable, &needs));
      } else if (readable(target)) {
        needs.sources.emplace(ToString(target), target);
      } else {
        missing.Update(
            absl::NotFoundError(absl::StrCat("the model has no '", ToString(target), "'")));
      }
    }
    if (!missing.ok()) {
      made.lacking_.emplace_back(ToString(probe), missing);
      continue;
    }
    std::vector<std::string> names;
    for (const auto& [name, target] : needs.sources) {
      names.push_back(absl::StrCat("'", name, "'"));
      if (!sources.emplace(name, target).second) continue;
      made.sources_.push_back({{target}, Reduction{Reduction::kFull}});
      const ValueId value = original.FindValue(target.name);
      if (value == kNoValue || target.kind == ProbeTarget::kBatch) continue;
      made.source_of_.emplace(value, name);
      bytes += original.value(value).type.bytes();
    }
    made.notes_.push_back(absl::StrCat("'", ToString(probe), "' is computed again from ",
                                       absl::StrJoin(names, ", "),
                                       ": the plan computes it within another operator"));
    made.probes_.push_back({probe, std::move(needs.nodes)});
  }
  if (bytes > kMostSourceBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "values that the plan computes within other operators would be computed again from ", bytes,
        " bytes in each step, more than ", kMostSourceBytes, "; ask for fewer of them"));
  }
  return made;
}

absl::StatusOr<std::vector<v1::HistoryRow>> DerivedValues::Answer(
    int64_t step, const std::vector<v1::HistoryRow>& rows, bool training) const {
  std::map<std::string, const v1::TensorValue*> given;
  for (const v1::HistoryRow& row : rows) {
    if (row.step() == step && row.value().has_tensor() &&
        row.reduction() == ToString(Reduction{Reduction::kFull})) {
      given.emplace(row.name(), &row.value().tensor());
    }
  }
  const auto find = [&](const std::string& name) -> absl::StatusOr<const v1::TensorValue*> {
    const auto found = given.find(name);
    if (found != given.end()) return found->second;
    return absl::InternalError(absl::StrCat("'", name, "' of step ", step, " was not read"));
  };
  std::map<ValueId, std::string> values;
  for (const auto& [value, name] : source_of_) {
    absl::StatusOr<const v1::TensorValue*> tensor = find(name);
    if (!tensor.ok()) return tensor.status();
    absl::StatusOr<std::string> elements = ElementsAs(**tensor, graph_.value(value).type, name);
    if (!elements.ok()) return elements.status();
    values[value] = *std::move(elements);
  }
  const Evaluator evaluate = CpuEvaluator(training);
  std::set<NodeId> done;
  std::vector<v1::HistoryRow> answers;
  for (const Derived& derived : probes_) {
    const auto annotate = [&](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat(ToString(derived.probe), " of step ", step,
                                                      ": ", status.message()));
    };
    for (const NodeId id : derived.nodes) {
      if (!done.insert(id).second) continue;
      const Node& node = graph_.node(id);
      std::vector<const std::string*> inputs;
      for (const ValueId input : node.inputs) {
        const bool constant = input != kNoValue && graph_.value(input).kind == ValueKind::kConstant;
        inputs.push_back(input == kNoValue ? nullptr
                         : constant        ? &graph_.value(input).constant
                                           : &values.at(input));
      }
      absl::StatusOr<std::vector<std::string>> results =
          evaluate(node.op, graph_.TypesOf(id), inputs);
      if (!results.ok()) return annotate(results.status());
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        if (node.outputs[o] != kNoValue) values[node.outputs[o]] = std::move((*results)[o]);
      }
    }
    const Reduction& reduction = derived.probe.reduction;
    std::vector<v1::ProbePart> parts;
    for (const ProbeTarget& target : derived.probe.targets) {
      const ValueId value =
          target.kind == ProbeTarget::kValue ? graph_.FindValue(target.name) : kNoValue;
      TensorType type;
      std::string elements;
      if (value != kNoValue) {
        type = graph_.value(value).type;
        elements = values.at(value);
      } else {
        absl::StatusOr<const v1::TensorValue*> tensor = find(ToString(target));
        if (!tensor.ok()) return tensor.status();
        type = {FromProto((*tensor)->dtype()),
                Dims((*tensor)->dims().begin(), (*tensor)->dims().end())};
        elements = (*tensor)->data();
      }
      absl::StatusOr<v1::ProbePart> part = WholePart(reduction, type, std::move(elements));
      if (!part.ok()) return annotate(part.status());
      parts.push_back(*std::move(part));
    }
    absl::StatusOr<v1::ProbeValue> value =
        reduction.kind == Reduction::kConfusion
            ? FinishConfusion({std::move(parts[0])}, {std::move(parts[1])})
            : Finish(reduction, std::move(parts), /*adds_up=*/false);
    if (!value.ok()) return annotate(value.status());
    v1::HistoryRow& row = answers.emplace_back();
    row.set_step(step);
    row.set_name(TargetsToString(derived.probe));
    row.set_reduction(ToString(reduction));
    row.set_source(v1::HistoryRow::REPLAY);
    *row.mutable_value() = *std::move(value);
  }
  return answers;
}

}  // namespace espalier
