#include "ops/operators/expect.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterLionUpdate(OpRegistry& registry) {
  OpDef def = MakeUpdate("lion_update",
                         "g = scale * gradient; p -= lr * (sign(beta1 m + (1 - beta1) g) + "
                         "weight_decay * p); m = beta2 m + (1 - beta2) g",
                         {{"m"}}, 10);
  def.attributes = {{.name = "beta1", .kind = AttributeKind::kFloat, .default_value = 0.9},
                    {.name = "beta2", .kind = AttributeKind::kFloat, .default_value = 0.99},
                    {.name = "weight_decay",
                     .kind = AttributeKind::kFloat,
                     .default_value = 0.0,
                     .doc = "decoupled"}};
  def.infer = [types_match =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(ExpectInRange("lion_update", types.attributes, "beta1", 0, 1));
    ESPALIER_RETURN_IF_ERROR(ExpectInRange("lion_update", types.attributes, "beta2", 0, 1));
    ESPALIER_RETURN_IF_ERROR(
        ExpectInRange("lion_update", types.attributes, "weight_decay", 0, 1e6));
    return types_match(types);
  };
  def.update = Update{.variants = {{"lion", "Lion (Chen et al., 2023)", 1e-4, {}}},
                      .states = StatesLikeParameter({"lion_m"})};
  registry.Add(std::move(def));
}

}  // namespace espalier
