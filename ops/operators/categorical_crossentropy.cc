#include "ops/operators/expect.h"
#include "ops/operators/loss.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterCategoricalCrossentropy(OpRegistry& registry) {
  OpDef def = MakeDistributionLoss(
      "categorical_crossentropy",
      "mean over rows of -sum_c t_c log p_c, where p = softmax(prediction) if from_logits, "
      "otherwise the prediction (at least 2^-126), and t = (1 - label_smoothing) target + "
      "label_smoothing / C",
      15);
  def.attributes.push_back({.name = "from_logits",
                            .kind = AttributeKind::kBool,
                            .default_value = true,
                            .doc = "otherwise the predictions are probabilities"});
  def.attributes.push_back({.name = "label_smoothing",
                            .kind = AttributeKind::kFloat,
                            .default_value = 0.0,
                            .doc = "in [0, 1): part of the target that is spread evenly"});
  def.infer = [pair =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(
        ExpectInRange("categorical_crossentropy", types.attributes, "label_smoothing", 0, 1));
    return pair(types);
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .differentiable = {0}};
  def.is_loss = true;
  def.prediction = Prediction::kClassLogits;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
