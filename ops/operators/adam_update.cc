#include "ops/operators/expect.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterAdamUpdate(OpRegistry& registry) {
  OpDef def = MakeUpdate(
      "adam_update",
      "g = scale * gradient (+ weight_decay * p unless decoupled; decoupled: p *= 1 - lr * "
      "weight_decay); m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; "
      "p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon), with epsilon_hat "
      "p -= lr sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)",
      {{"m"}, {"v"}}, 16);
  def.attributes = {
      {.name = "beta1", .kind = AttributeKind::kFloat, .default_value = 0.9},
      {.name = "beta2", .kind = AttributeKind::kFloat, .default_value = 0.999},
      {.name = "epsilon", .kind = AttributeKind::kFloat, .default_value = 1e-8},
      {.name = "weight_decay", .kind = AttributeKind::kFloat, .default_value = 0.0},
      {.name = "decoupled", .kind = AttributeKind::kBool, .default_value = false, .doc = "AdamW"},
      {.name = "epsilon_hat",
       .kind = AttributeKind::kBool,
       .default_value = false,
       .doc = "add epsilon before v is corrected, as Keras does"}};
  def.infer = [types_match =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(ExpectInRange("adam_update", types.attributes, "beta1", 0, 1));
    ESPALIER_RETURN_IF_ERROR(ExpectInRange("adam_update", types.attributes, "beta2", 0, 1));
    ESPALIER_RETURN_IF_ERROR(ExpectInRange("adam_update", types.attributes, "epsilon", 0, 1e6));
    ESPALIER_RETURN_IF_ERROR(
        ExpectInRange("adam_update", types.attributes, "weight_decay", 0, 1e6));
    return types_match(types);
  };
  def.update = Update{.variants = {{"adam", "Adam", 1e-3, {}},
                                   {"adamw",
                                    "Adam with decoupled weight decay",
                                    1e-3,
                                    {{"decoupled", true}, {"weight_decay", 0.01}}}},
                      .states = StatesLikeParameter({"adam_m", "adam_v"})};
  registry.Add(std::move(def));
}

}  // namespace espalier
