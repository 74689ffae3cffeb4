#include "ops/operators/classification.h"
#include "ops/operators/expect.h"
#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterTopKAccuracy(OpRegistry& registry) {
  OpDef def = MakeClassification("top_k_accuracy",
                                 "fraction of labels whose logit is among the k largest, the first "
                                 "ones where several are equal; NaN is wrong");
  def.attributes.push_back({.name = "k",
                            .kind = AttributeKind::kInt,
                            .default_value = int64_t{5},
                            .doc = "at least 1; with k classes or fewer every label is right"});
  def.infer = [labels =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(ExpectPositive("top_k_accuracy", "k", types.attributes.Int("k")));
    return labels(types);
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.is_metric = true;
  def.prediction = Prediction::kClassScores;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
