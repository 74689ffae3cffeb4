#include <cmath>

#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterRootMeanSquaredError(OpRegistry& registry) {
  // Returns the mean of squares, whose partial sums add up; `finish` takes the root.
  OpDef def = MakeElementLoss("root_mean_squared_error",
                              "mean of (prediction - target)^2, reported as its root", 3);
  def.is_metric = true;
  def.finish = [](double mean) { return std::sqrt(mean); };
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
