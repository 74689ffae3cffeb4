#include <cmath>

#include "ops/operators/classification.h"
#include "ops/operators/expect.h"
#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterPerplexity(OpRegistry& registry) {
  // Returns the mean of the logarithms, whose partial sums add up; `finish` takes the exponential.
  OpDef def = MakeClassification("perplexity",
                                 "mean over all labels of -log softmax(logits)[label], reported as "
                                 "its exponential; ignored labels add nothing");
  def.cost = [](const NodeTypes& types) {
    return Cost{15.0 * static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.is_metric = true;
  def.prediction = Prediction::kClassLogits;
  def.finish = [](double mean) { return std::exp(mean); };
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
