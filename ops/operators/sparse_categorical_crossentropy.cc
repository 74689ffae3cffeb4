#include "ops/operators/classification.h"
#include "ops/operators/expect.h"
#include "ops/operators/loss.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

const char kSparseCategoricalCrossentropy[] = "sparse_categorical_crossentropy";

SplitRule SplitSparseCategoricalCrossentropy(const NodeTypes& types) {
  SplitRule rule = SplitLabels(types);
  rule.inputs[0].push_back(kNotSplit);
  return rule;
}

}  // namespace

void RegisterSparseCategoricalCrossentropy(OpRegistry& registry) {
  OpDef def = MakeClassification(
      kSparseCategoricalCrossentropy,
      "-sum_c t_c weight_c log softmax(logits)_c with t = (1 - label_smoothing) at the label, plus "
      "label_smoothing / C everywhere; its mean over labels, sum, or the values; ignored labels "
      "add "
      "nothing");
  def.inputs.push_back({"weights", /*optional=*/true});
  def.attributes = LabelLossAttributes("all");
  def.attributes.push_back({.name = "label_smoothing",
                            .kind = AttributeKind::kFloat,
                            .default_value = 0.0,
                            .doc = "in [0, 1): part of the target that is spread evenly"});
  def.infer = [labels =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(CheckLabelReduction(kSparseCategoricalCrossentropy, types.attributes));
    ESPALIER_RETURN_IF_ERROR(
        ExpectInRange(kSparseCategoricalCrossentropy, types.attributes, "label_smoothing", 0, 1));
    if (absl::StatusOr<std::vector<TensorType>> scalar = labels(types); !scalar.ok()) return scalar;
    if (types.has_input(2)) {
      const InputRef weights{kSparseCategoricalCrossentropy, "weights", types.inputs[2]};
      ESPALIER_RETURN_IF_ERROR(ExpectDType(weights, {DType::kF32}));
      ESPALIER_RETURN_IF_ERROR(
          ExpectShape(weights, {types.inputs[0].dims.back()}, "there is one weight per class"));
    }
    return std::vector<TensorType>{LabelLossType(types)};
  };
  def.split = SplitSparseCategoricalCrossentropy;
  def.cost = [](const NodeTypes& types) {
    return Cost{15.0 * static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1, 2}, .differentiable = {0}};
  def.index_ranges = [](const NodeTypes& types) {
    return std::vector<IndexRange>{LabelRange(types, types.inputs[0].dims.back())};
  };
  def.is_loss = true;
  def.prediction = Prediction::kClassLogits;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
