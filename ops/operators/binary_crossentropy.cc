#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterBinaryCrossentropy(OpRegistry& registry) {
  OpDef def = MakeElementLoss(
      "binary_crossentropy",
      "mean of -(t log p + (1 - t) log(1 - p)), where p = sigmoid(prediction) if from_logits; "
      "otherwise p is the prediction, and its logarithms are at least -100",
      12);
  def.attributes.push_back({.name = "from_logits",
                            .kind = AttributeKind::kBool,
                            .default_value = true,
                            .doc = "otherwise the predictions are probabilities"});
  def.gradient = Gradient{.needs_inputs = {0, 1}, .differentiable = {0, 1}};
  def.is_loss = true;
  def.prediction = Prediction::kBinaryLogits;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
