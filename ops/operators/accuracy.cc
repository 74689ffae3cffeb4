#include "ops/operators/classification.h"
#include "ops/operators/expect.h"
#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterAccuracy(OpRegistry& registry) {
  OpDef def = MakeClassification("accuracy",
                                 "fraction of labels whose logit is the largest, the first one "
                                 "where several are; NaN is wrong");
  def.cost = [](const NodeTypes& types) {
    return Cost{static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.is_metric = true;
  def.prediction = Prediction::kClassScores;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
