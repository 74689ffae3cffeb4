#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/loss.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterIdentityLoss(OpRegistry& registry) {
  OpDef def;
  def.name = "identity_loss";
  def.doc = "mean of x over all elements";
  def.inputs = {{"x"}};
  def.attributes = {CountAttribute("elements")};
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(ExpectDType({"identity_loss", "x", types.inputs[0]}, {DType::kF32}));
    return std::vector<TensorType>{{DType::kF32, {}}};
  };
  def.canonicalize = [](const NodeTypes& types, Attributes* attributes) {
    attributes->Set("count", types.inputs[0].num_elements());
  };
  def.split = [](const NodeTypes& types) { return SplitIntoScalars(types, false); };
  def.gradient = Gradient{.differentiable = {0}};
  def.is_loss = true;
  TakeExampleWeights(&def);
  registry.Add(std::move(def));
}

}  // namespace espalier
