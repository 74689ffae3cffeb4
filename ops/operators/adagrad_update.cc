#include "ops/operators/expect.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterAdagradUpdate(OpRegistry& registry) {
  OpDef def = MakeUpdate(
      "adagrad_update",
      "g = scale * gradient + weight_decay * p; sum = sum + g^2 (it starts at "
      "initial_accumulator_value); p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(sum) + eps), with "
      "eps_in_sqrt g / sqrt(sum + eps)",
      {{"sum"}}, 8);
  def.attributes = {
      {.name = "lr_decay", .kind = AttributeKind::kFloat, .default_value = 0.0},
      {.name = "weight_decay", .kind = AttributeKind::kFloat, .default_value = 0.0},
      {.name = "initial_accumulator_value", .kind = AttributeKind::kFloat, .default_value = 0.0},
      {.name = "eps", .kind = AttributeKind::kFloat, .default_value = 1e-10},
      {.name = "eps_in_sqrt",
       .kind = AttributeKind::kBool,
       .default_value = false,
       .doc = "add eps below the root, as Keras and optax do"}};
  def.infer = [types_match =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    for (const char* name : {"lr_decay", "weight_decay", "initial_accumulator_value", "eps"}) {
      ESPALIER_RETURN_IF_ERROR(ExpectInRange("adagrad_update", types.attributes, name, 0, 1e6));
    }
    return types_match(types);
  };
  def.update = Update{.variants = {{"adagrad", "Adagrad", 0.01, {}}},
                      .states = StatesLikeParameter({"adagrad_sum"})};
  registry.Add(std::move(def));
}

}  // namespace espalier
