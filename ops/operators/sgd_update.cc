#include "ops/operators/expect.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSgdUpdate(OpRegistry& registry) {
  OpDef def =
      MakeUpdate("sgd_update",
                 "g = scale * gradient + weight_decay * p; with momentum: buffer = momentum * "
                 "buffer + g (first step: g), g = buffer, or g + momentum * buffer with nesterov; "
                 "p = p - lr * g",
                 {{"momentum buffer", /*optional=*/true}}, 6);
  def.attributes = {{.name = "momentum",
                     .kind = AttributeKind::kFloat,
                     .default_value = 0.0,
                     .doc = "in [0, 1); above 0 the buffer is needed"},
                    {.name = "weight_decay",
                     .kind = AttributeKind::kFloat,
                     .default_value = 0.0,
                     .doc = "added to the gradient, times the parameter"},
                    {.name = "nesterov",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "Nesterov's momentum, which must be above 0"}};
  def.infer = [types_match =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(ExpectInRange("sgd_update", types.attributes, "momentum", 0, 1));
    ESPALIER_RETURN_IF_ERROR(ExpectInRange("sgd_update", types.attributes, "weight_decay", 0, 1e6));
    if (types.attributes.Float("momentum") > 0 && !types.has_input(4)) {
      return OpError("sgd_update",
                     "input 'momentum buffer' is missing, but attribute 'momentum' is above 0");
    }
    if (types.attributes.Bool("nesterov") && types.attributes.Float("momentum") <= 0) {
      return AttributeError("sgd_update", "nesterov", "true", "a momentum above 0 with it");
    }
    return types_match(types);
  };
  def.update = Update{.variants = {{"sgd", "stochastic gradient descent", 0.01, {}}},
                      .states = [](const Attributes& attributes, const Dims&) {
                        std::vector<Update::State> states(1);
                        if (attributes.Float("momentum") > 0) states[0].name = "momentum";
                        return states;
                      }};
  registry.Add(std::move(def));
}

}  // namespace espalier
