#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterCategoricalAccuracy(OpRegistry& registry) {
  OpDef def = MakeDistributionLoss("categorical_accuracy",
                                   "fraction of rows in which prediction and target have their "
                                   "largest value, the first one, at the same place; NaN is wrong",
                                   2);
  def.is_metric = true;
  def.prediction = Prediction::kClassScores;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
