#include "server/jobs/add_loss_and_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "ops/graph/graph_proto.h"
#include "server/jobs/match_predictions.h"
#include "server/jobs/prediction_form.h"

namespace espalier {
namespace {

constexpr char kAxis[] = "axis";
constexpr char kMeanOver[] = "mean_over";
constexpr char kWeightsOfClasses[] = "weights";

// The index of the input for weights of classes; -1: it has none.
int ClassWeightsInput(const OpDef& def) {
  const auto found = std::find_if(def.inputs.begin(), def.inputs.end(), [](const auto& input) {
    return input.name == kWeightsOfClasses;
  });
  return found == def.inputs.end() ? -1 : static_cast<int>(found - def.inputs.begin());
}

std::string LossesWithClassWeights(const OpRegistry& registry) {
  std::vector<std::string> names;
  for (const OpDef* def : registry.All()) {
    if (def->is_loss && ClassWeightsInput(*def) >= 0) names.push_back(def->name);
  }
  return absl::StrJoin(names, ", ");
}

// Returns "a, b, c; did you mean 'b'?".
std::string NamesOf(const OpRegistry& registry, bool OpDef::*kind, const std::string& given) {
  std::vector<std::string> names;
  for (const OpDef* def : registry.All()) {
    if (def->*kind) names.push_back(def->name);
  }
  return absl::StrCat(absl::StrJoin(names, ", "), DidYouMean(given, names));
}

// What a loss or metric compares the model's output with; given by its second input's name.
enum class LabelKind { kNothing, kLabels, kTarget };
LabelKind LabelKindOf(const OpDef& def) {
  if (def.inputs.size() < 2 || def.inputs[1].optional) return LabelKind::kNothing;
  return def.inputs[1].name == "labels" ? LabelKind::kLabels : LabelKind::kTarget;
}

bool TakesClasses(const OpDef& def) {
  return def.prediction == Prediction::kClassLogits || def.prediction == Prediction::kClassScores ||
         def.prediction == Prediction::kLogProbabilities;
}

Dims WithoutOnes(const Dims& dims) {
  Dims kept;
  std::copy_if(dims.begin(), dims.end(), std::back_inserter(kept),
               [](int64_t d) { return d != 1; });
  return kept;
}

// The dimensions of size 1 but for the first.
std::vector<int64_t> OnesOf(const Dims& dims) {
  std::vector<int64_t> axes;
  for (size_t d = 1; d < dims.size(); ++d) {
    if (dims[d] == 1) axes.push_back(static_cast<int64_t>(d));
  }
  return axes;
}

absl::StatusOr<LossOrMetric> HeadFromProto(const std::string& field, const v1::Head& head) {
  absl::StatusOr<Attributes> attributes = AttributesFromProto(head.attributes());
  if (!attributes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", attributes.status().message()));
  }
  const double weight = head.has_weight() ? head.weight() : 1;
  if (!(weight > 0) || !std::isfinite(weight)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".weight is ", weight, "; accepted: a number greater than zero"));
  }
  const auto& class_weights = head.class_weights();
  for (int i = 0; i < class_weights.size(); ++i) {
    if (std::isfinite(class_weights[i]) && class_weights[i] >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, ".class_weights[", i, "] is ",
                                                   class_weights[i],
                                                   "; accepted: a finite number, 0 or more"));
  }
  if (!class_weights.empty() &&
      std::all_of(class_weights.begin(), class_weights.end(), [](float w) { return w == 0; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ".class_weights: all are 0, so that no label counts; give one class a weight"));
  }
  return LossOrMetric{head.op(),
                      head.output(),
                      weight,
                      *std::move(attributes),
                      {class_weights.begin(), class_weights.end()}};
}

class HeadAdder {
 public:
  HeadAdder(const OpRegistry& registry, const LabelColumns& labels, int64_t batch, Graph* graph)
      : registry_(registry), labels_(labels), batch_(batch), graph_(*graph) {
    for (const Value& value : graph_.values()) names_.insert(value.name);
    for (const Node& node : graph_.nodes()) names_.insert(node.name);
  }

  absl::Status Run(const Objective& objective) {
    if (objective.losses.empty()) {
      return absl::InvalidArgumentError(
          "objective.losses: an ONNX model needs one, such as sparse_categorical_crossentropy or "
          "mean_squared_error");
    }
    if (graph_.outputs.empty()) {
      return absl::InvalidArgumentError("the ONNX model has no output to put the loss on");
    }
    bound_ = graph_;
    absl::Status status = BindAndInfer(registry_, batch_, &bound_);
    if (!status.ok()) return status;
    default_output_ =
        objective.losses[0].output.empty() ? graph_.outputs[0].first : objective.losses[0].output;
    std::vector<std::pair<std::string, ValueId>> added;
    std::vector<ValueId> terms;
    const bool several = objective.losses.size() > 1;
    for (size_t i = 0; i < objective.losses.size(); ++i) {
      const LossOrMetric& loss = objective.losses[i];
      const OpDef* def = registry_.Find(loss.op);
      if (def == nullptr || !def->is_loss) {
        return absl::InvalidArgumentError(absl::StrCat(
            "spec.loss '", loss.op,
            "' is not a loss; there are: ", NamesOf(registry_, &OpDef::is_loss, loss.op)));
      }
      const std::string output = OutputOf(loss);
      absl::StatusOr<ValueId> term =
          AddHead(*def, loss, several ? absl::StrCat("loss.", output) : "loss");
      if (!term.ok()) return term.status();
      if (several) {
        std::string name = absl::StrCat("loss.", output);
        if (Holds(added, name)) name = absl::StrCat(name, ".", loss.op);
        if (Holds(added, name)) {
          return absl::InvalidArgumentError(absl::StrCat("objective.losses[", i, "]: '", loss.op,
                                                         "' is on output '", output, "' twice"));
        }
        added.emplace_back(name, *term);
      }
      terms.push_back(loss.weight == 1 ? *term
                                       : Add(absl::StrCat("loss.", output, ".weighted"),
                                             "multiply_scalar", {{"value", loss.weight}}, {*term}));
    }
    added.emplace(added.begin(), "loss",
                  terms.size() == 1 ? terms[0] : Add("loss", "add_n", {}, terms));
    for (const LossOrMetric& metric : objective.metrics) {
      const OpDef* def = registry_.Find(metric.op);
      if (def == nullptr || !(def->is_metric || def->is_loss)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "spec.metrics '", metric.op,
            "' is not a metric; there are: ", NamesOf(registry_, &OpDef::is_metric, metric.op)));
      }
      const std::string name =
          metric.output.empty() ? metric.op : absl::StrCat(metric.op, ".", metric.output);
      if (Holds(added, name)) {
        return absl::InvalidArgumentError(absl::StrCat("objective.metrics: '", name, "' twice"));
      }
      absl::StatusOr<ValueId> value = AddHead(*def, metric, name);
      if (!value.ok()) return value.status();
      added.emplace_back(name, *value);
    }
    // A model output of the same name would be mistaken for a loss or metric.
    for (auto& [name, id] : graph_.outputs) {
      while (Holds(added, name)) name = absl::StrCat("model.", name);
    }
    graph_.outputs.insert(graph_.outputs.end(), added.begin(), added.end());
    return absl::OkStatus();
  }

 private:
  static bool Holds(const std::vector<std::pair<std::string, ValueId>>& outputs,
                    const std::string& name) {
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](const auto& output) { return output.first == name; });
  }

  std::string OutputOf(const LossOrMetric& head) const {
    return head.output.empty() ? default_output_ : head.output;
  }

  ValueId Add(std::string name, const std::string& op, Attributes attributes,
              std::vector<ValueId> inputs) {
    while (!names_.insert(name).second) name = absl::StrCat("_", name);
    Value value;
    value.name = name;
    const ValueId id = graph_.AddValue(std::move(value));
    Node node;
    node.name = std::move(name);
    node.op = op;
    node.attributes = std::move(attributes);
    node.inputs = std::move(inputs);
    node.outputs = {id};
    graph_.AddNode(std::move(node));
    return id;
  }

  ValueId AddConstant(std::string name, const std::vector<float>& elements) {
    while (!names_.insert(name).second) name = absl::StrCat("_", name);
    Value value;
    value.name = std::move(name);
    value.kind = ValueKind::kConstant;
    value.type = {DType::kF32, {static_cast<int64_t>(elements.size())}};
    value.constant.assign(reinterpret_cast<const char*>(elements.data()),
                          elements.size() * sizeof(float));
    return graph_.AddValue(std::move(value));
  }

  absl::StatusOr<ValueId> AddHead(const OpDef& def, const LossOrMetric& head,
                                  const std::string& name) {
    const std::string output = OutputOf(head);
    ValueId prediction = bound_.FindOutput(output);
    if (prediction == kNoValue) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", head.op, "' is on output '", output, "', which the model has not; it has: ",
          absl::StrJoin(bound_.outputs, ", ",
                        [](std::string* out, const auto& o) { out->append(o.first); })));
    }
    Attributes attributes = head.attributes;
    const int weights_input = ClassWeightsInput(def);
    if (!head.class_weights.empty() && weights_input < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", head.op, "' on output '", output,
          "' takes no class_weights; these losses do: ", LossesWithClassWeights(registry_)));
    }
    const LabelKind kind = LabelKindOf(def);
    if (kind == LabelKind::kNothing) {
      return Add(name, def.name, std::move(attributes), {prediction});
    }
    const TensorType type = bound_.value(prediction).type;
    if (type.dims.empty() || type.dims[0] != batch_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "output '", output, "' of the ONNX model has shape ", ToString(type.dims),
          "; its first dimension must be the batch of ", batch_,
          type.dims.empty()
              ? " (of a model whose output is the loss itself, the loss is identity_loss)"
              : " (export the model with a dynamic first dimension)"));
    }
    const std::string column = ColumnOf(output);
    const std::optional<TensorType> example = labels_.find(column);
    const int rank = static_cast<int>(type.dims.size());
    const int classes = def.prediction == Prediction::kLogProbabilities ? 1 : rank - 1;
    TensorType wanted = type;
    int axis = classes;
    if (kind == LabelKind::kLabels && rank < 2) {
      return absl::InvalidArgumentError(absl::StrCat("output '", output, "' has shape ",
                                                     ToString(type.dims), "; ", def.name,
                                                     " needs [batch, ..., classes]"));
    }
    if (rank > 1 && TakesClasses(def)) {
      absl::StatusOr<int> found = ClassAxis(
          def, prediction, kind == LabelKind::kLabels ? example : std::nullopt, &attributes);
      if (!found.ok()) return found.status();
      axis = *found;
      if (kind == LabelKind::kLabels && type.dims[axis] == 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "output '", output, "' has shape ", ToString(type.dims), ", one class in dimension ",
            axis, ", which ", def.name,
            " cannot tell from others; for labels of 0 and 1 there are binary_crossentropy and "
            "binary_accuracy"));
      }
    }
    if (kind == LabelKind::kLabels) {
      wanted.dims.erase(wanted.dims.begin() + axis);
      wanted.dtype = !example.has_value()            ? labels_.classes
                     : example->dtype == DType::kI64 ? DType::kI64
                                                     : DType::kI32;
    }
    absl::StatusOr<ValueId> label = LabelsFor(def, column, wanted, example);
    if (!label.ok()) return label.status();
    if (axis != classes) {
      prediction = MoveAxis(prediction, rank, axis, classes);
      if (kind == LabelKind::kTarget) label = MoveAxis(*label, rank, axis, classes);
    }
    std::vector<ValueId> inputs = {prediction, *label};
    if (!head.class_weights.empty()) {
      const auto weights = static_cast<int64_t>(head.class_weights.size());
      const int64_t classes_of_output = type.dims[axis];
      if (weights != classes_of_output) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", head.op, "' has ", weights, " class_weights, and output '", output, "' of shape ",
            ToString(type.dims), " has ", classes_of_output, " classes in dimension ", axis, "; ",
            weights > classes_of_output ? absl::StrCat("there is no class ", weights - 1, "; ")
                                        : "",
            "give one for each class"));
      }
      inputs.resize(static_cast<size_t>(weights_input) + 1, kNoValue);
      inputs.back() = AddConstant(absl::StrCat(name, ".class_weights"), head.class_weights);
      if (!attributes.Has(kMeanOver)) attributes.Set(kMeanOver, std::string("counted"));
    }
    return Add(name, def.name, std::move(attributes), std::move(inputs));
  }

  // Returns the dimension of the output's classes, and removes `axis` from the attributes.
  absl::StatusOr<int> ClassAxis(const OpDef& def, ValueId prediction,
                                const std::optional<TensorType>& example,
                                Attributes* attributes) const {
    const Dims& dims = bound_.value(prediction).type.dims;
    const int rank = static_cast<int>(dims.size());
    const int usual = def.prediction == Prediction::kLogProbabilities ? 1 : rank - 1;
    if (attributes->Has(kAxis)) {
      const int64_t given = attributes->Int(kAxis);
      const int64_t axis = given < 0 ? given + rank : given;
      attributes->Erase(kAxis);
      if (axis >= 1 && axis < rank) return static_cast<int>(axis);
      return absl::InvalidArgumentError(
          absl::StrCat(def.name, ": axis is ", given, "; the classes of an output of shape ",
                       ToString(dims), " are in a dimension from 1 to ", rank - 1));
    }
    const PredictionForm form = FormOf(bound_, prediction);
    if (form.IsDistribution() && form.axis >= 1) return form.axis;
    if (!example.has_value()) return usual;
    const auto fits = [&](int axis) {
      Dims without(dims.begin() + 1, dims.end());
      without.erase(without.begin() + (axis - 1));
      return WithoutOnes(without) == WithoutOnes(example->dims);
    };
    const int other = usual == 1 ? rank - 1 : 1;
    if (fits(usual) && other != usual && fits(other) && dims[1] != 1 && dims[rank - 1] != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          def.name, ": an output of shape ", ToString(dims), " with labels of shape ",
          ToString(example->dims), " for each example may have its classes in dimension ", usual,
          " or ", other, "; say which, as ", def.name, ":axis=1"));
    }
    return !fits(usual) && fits(other) ? other : usual;
  }

  // The input for the labels of an output.
  std::string ColumnOf(const std::string& output) const {
    std::string own = absl::StrCat(kLabelsInput, ".", output);
    return labels_.find(own).has_value() ? own : kLabelsInput;
  }

  // Returns the labels in the shape `wanted`, of which dimension 0 is the batch.
  absl::StatusOr<ValueId> LabelsFor(const OpDef& def, const std::string& input, TensorType wanted,
                                    const std::optional<TensorType>& example) {
    TensorType fed = wanted;
    const Dims per_example(wanted.dims.begin() + 1, wanted.dims.end());
    const bool reshaped = example.has_value() && example->dims != per_example &&
                          WithoutOnes(example->dims) == WithoutOnes(per_example);
    if (reshaped) {
      fed.dims = example->dims;
      fed.dims.insert(fed.dims.begin(), batch_);
    }
    ValueId v = graph_.FindValue(input);
    if (v == kNoValue) {
      Value value;
      value.name = input;
      value.kind = ValueKind::kInput;
      value.type = fed;
      value.type.dims[0] = -1;
      names_.insert(input);
      v = graph_.AddValue(std::move(value));
      fed_[v] = fed;
    } else {
      // An input of the model serves, too: such models compute a loss of their own.
      const auto ours = fed_.find(v);
      if (ours == fed_.end() && graph_.value(v).kind != ValueKind::kInput) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the ONNX model has a tensor named '", input,
            "', which is the name of the input that the loss needs; rename it and export again"));
      }
      const TensorType has = ours != fed_.end() ? ours->second : bound_.value(v).type;
      const bool integers = has.dtype == DType::kI32 || has.dtype == DType::kI64;
      const bool wants_integers = wanted.dtype == DType::kI32 || wanted.dtype == DType::kI64;
      if (has.dims != fed.dims || (has.dtype != fed.dtype && !(integers && wants_integers))) {
        return absl::InvalidArgumentError(
            absl::StrCat(def.name, " needs labels of ", ToString(fed), ", but input '", input,
                         "' is ", ToString(has),
                         "; give an output labels of its own: a dataset column 'labels.OUTPUT', "
                         "or one that `columns` names for that"));
      }
    }
    if (!reshaped) return v;
    if (const auto known = reshaped_.find({v, wanted.dims}); known != reshaped_.end()) {
      return known->second;
    }
    ValueId result = v;
    if (const std::vector<int64_t> ones = OnesOf(fed.dims); !ones.empty()) {
      result = Add(absl::StrCat(input, ".squeezed"), "squeeze", {{"axes", ones}}, {result});
    }
    if (const std::vector<int64_t> ones = OnesOf(wanted.dims); !ones.empty()) {
      result = Add(absl::StrCat(input, ".unsqueezed"), "unsqueeze", {{"axes", ones}}, {result});
    }
    return reshaped_[{v, wanted.dims}] = result;
  }

  ValueId MoveAxis(ValueId v, int rank, int from, int to) {
    if (const auto known = moved_.find({v, from, to}); known != moved_.end()) return known->second;
    std::vector<int64_t> perm;
    for (int d = 0; d < rank; ++d) {
      if (d != from) perm.push_back(d);
    }
    perm.insert(perm.begin() + to, from);
    const std::string name = absl::StrCat(graph_.value(v).name, ".by_class");
    return moved_[{v, from, to}] = Add(name, "transpose", {{"perm", perm}}, {v});
  }

  const OpRegistry& registry_;
  const LabelColumns& labels_;
  const int64_t batch_;
  Graph& graph_;
  Graph bound_;  // the model, as given
  std::string default_output_;
  std::set<std::string> names_;
  std::map<ValueId, TensorType> fed_;  // inputs that were added, with the batch
  std::map<std::pair<ValueId, Dims>, ValueId> reshaped_;
  std::map<std::tuple<ValueId, int, int>, ValueId> moved_;
};

}  // namespace

absl::StatusOr<Objective> ObjectiveFromProto(
    const v1::Objective& objective, const std::string& loss,
    const google::protobuf::RepeatedPtrField<std::string>& metrics) {
  Objective result;
  const bool full = objective.losses_size() + objective.metrics_size() > 0;
  if (full && (!loss.empty() || !metrics.empty())) {
    return absl::InvalidArgumentError("objective: give it or `loss` and `metrics`, not both");
  }
  for (int i = 0; i < objective.losses_size(); ++i) {
    auto head = HeadFromProto(absl::StrCat("objective.losses[", i, "]"), objective.losses(i));
    if (!head.ok()) return head.status();
    result.losses.push_back(*std::move(head));
  }
  for (int i = 0; i < objective.metrics_size(); ++i) {
    auto head = HeadFromProto(absl::StrCat("objective.metrics[", i, "]"), objective.metrics(i));
    if (!head.ok()) return head.status();
    if (objective.metrics(i).has_weight()) {
      return absl::InvalidArgumentError(
          absl::StrCat("objective.metrics[", i, "].weight: only losses have one"));
    }
    if (objective.metrics(i).class_weights_size() > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "objective.metrics[", i, "].class_weights: only losses have some; the loss is reported"));
    }
    result.metrics.push_back(*std::move(head));
  }
  if (!loss.empty()) result.losses.push_back({loss});
  for (const std::string& metric : metrics) result.metrics.push_back({metric});
  return result;
}

absl::StatusOr<std::vector<std::string>> AddLossAndMetrics(const OpRegistry& registry,
                                                           const Objective& objective,
                                                           const LabelColumns& labels,
                                                           int64_t batch, Graph* graph) {
  MatchOptions options;
  options.first = static_cast<NodeId>(graph->nodes().size());  // the model's own losses are its own
  options.describe_all = true;
  absl::Status status = HeadAdder(registry, labels, batch, graph).Run(objective);
  if (!status.ok()) return status;
  return MatchPredictions(registry, batch, options, graph);
}

}  // namespace espalier
