#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterBinaryAccuracy(OpRegistry& registry) {
  OpDef def = MakeElementLoss("binary_accuracy",
                              "fraction of elements with (prediction > threshold) = (target > "
                              "0.5); NaN is wrong",
                              2);
  def.attributes.push_back({.name = "threshold",
                            .kind = AttributeKind::kFloat,
                            .default_value = 0.5,
                            .doc = "0.5 for probabilities, 0 for logits"});
  def.is_metric = true;
  def.prediction = Prediction::kBinaryScores;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
