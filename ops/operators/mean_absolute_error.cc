#include "ops/operators/expect.h"
#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterMeanAbsoluteError(OpRegistry& registry) {
  OpDef def = MakeElementLoss("mean_absolute_error",
                              "mean (or sum) of |prediction - target| over all elements", 3);
  def.attributes.push_back(ReductionAttribute("\"mean\" or \"sum\""));
  def.infer = [pair =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(
        ExpectOneOf("mean_absolute_error", types.attributes, "reduction", {"mean", "sum"}));
    return pair(types);
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .differentiable = {0, 1}};
  def.is_loss = true;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
