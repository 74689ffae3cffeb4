#include "absl/strings/str_cat.h"
#include "ops/operators/classification.h"
#include "ops/operators/expect.h"
#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

const char kNegativeLogLikelihood[] = "negative_log_likelihood";

absl::StatusOr<std::vector<TensorType>> InferNegativeLogLikelihood(const NodeTypes& types) {
  const InputRef scores{kNegativeLogLikelihood, "log_probabilities", types.inputs[0]};
  const InputRef labels{kNegativeLogLikelihood, "labels", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(CheckLabelReduction(kNegativeLogLikelihood, types.attributes));
  ESPALIER_RETURN_IF_ERROR(ExpectDType(scores, {DType::kF32}));
  ESPALIER_RETURN_IF_ERROR(ExpectInteger(labels));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(scores, 2));
  const Dims& dims = scores.type.dims;
  std::vector<ExpectedDim> places = {dims[0]};
  places.insert(places.end(), dims.begin() + 2, dims.end());
  ESPALIER_RETURN_IF_ERROR(ExpectShape(labels, places,
                                       absl::StrCat("input 'log_probabilities' has shape ",
                                                    ToString(dims), ", classes in dimension 1")));
  if (dims[1] < 1) {
    return OpError(kNegativeLogLikelihood,
                   absl::StrCat("input 'log_probabilities' has shape ", ToString(dims),
                                ", expected at least one class in dimension 1"));
  }
  if (types.has_input(2)) {
    const InputRef weights{kNegativeLogLikelihood, "weights", types.inputs[2]};
    ESPALIER_RETURN_IF_ERROR(ExpectDType(weights, {DType::kF32}));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(weights, {dims[1]}, "there is one weight per class"));
  }
  return std::vector<TensorType>{LabelLossType(types)};
}

SplitRule SplitNegativeLogLikelihood(const NodeTypes& types) {
  SplitRule rule = SplitLabels(types);
  rule.inputs[0] = rule.inputs[1];
  rule.inputs[0].insert(rule.inputs[0].begin() + 1, kNotSplit);
  return rule;
}

}  // namespace

void RegisterNegativeLogLikelihood(OpRegistry& registry) {
  OpDef def;
  def.name = kNegativeLogLikelihood;
  def.doc =
      "log_probabilities[N, C, ...], labels[N, ...], weights[C]?: -weight[label] * "
      "log_probability[label] of every place, reduced; ignored labels add nothing";
  def.inputs = {{"log_probabilities"}, {"labels"}, {"weights", /*optional=*/true}};
  def.attributes = LabelLossAttributes("counted");
  def.infer = InferNegativeLogLikelihood;
  def.canonicalize = [](const NodeTypes& types, Attributes* attributes) {
    attributes->Set("count", types.inputs[1].num_elements());
  };
  def.split = SplitNegativeLogLikelihood;
  // Reads only the elements at the labels.
  def.cost = [](const NodeTypes& types) {
    const double labels = static_cast<double>(types.inputs[1].num_elements());
    return Cost{2 * labels, OperandBytes(types) - static_cast<double>(types.inputs[0].bytes()) +
                                labels * sizeof(float)};
  };
  def.gradient = Gradient{
      .needs_inputs = {0, 1, 2}, .differentiable = {0}, .cost = [](const NodeTypes& types) {
        return Cost{0, static_cast<double>(types.inputs[0].bytes()) + OperandBytes(types)};
      }};
  def.onnx = OnnxForm{"NegativeLogLikelihoodLoss",
                      {{"reduction", "reduction"}, {"ignore_index", "ignore_index"}}};
  def.index_ranges = [](const NodeTypes& types) {
    return std::vector<IndexRange>{LabelRange(types, types.inputs[0].dims[1])};
  };
  def.is_loss = true;
  def.prediction = Prediction::kLogProbabilities;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
