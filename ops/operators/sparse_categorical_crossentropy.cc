#include "ops/operators/classification.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSparseCategoricalCrossentropy(OpRegistry& registry) {
  OpDef def = MakeClassification(
      "sparse_categorical_crossentropy",
      "mean over all labels of -log softmax(logits)[label]; ignored labels add nothing");
  def.cost = [](const NodeTypes& types) {
    return Cost{15.0 * static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .differentiable = {0}};
  def.is_loss = true;
  registry.Add(std::move(def));
}

}  // namespace espalier
