#include "ops/operators/expect.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSgdUpdate(OpRegistry& registry) {
  OpDef def =
      MakeUpdate("sgd_update",
                 "g = scale * gradient + weight_decay * p; with momentum: buffer = momentum * "
                 "buffer + g (first step: g), g = buffer; p = p - lr * g",
                 {{"momentum buffer", /*optional=*/true}}, 6);
  def.attributes = {{.name = "momentum",
                     .kind = AttributeKind::kFloat,
                     .default_value = 0.0,
                     .doc = "in [0, 1); above 0 the buffer is needed"},
                    {.name = "weight_decay",
                     .kind = AttributeKind::kFloat,
                     .default_value = 0.0,
                     .doc = "added to the gradient, times the parameter"}};
  def.infer = [types_match =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(ExpectInRange("sgd_update", types.attributes, "momentum", 0, 1));
    ESPALIER_RETURN_IF_ERROR(ExpectInRange("sgd_update", types.attributes, "weight_decay", 0, 1e6));
    if (types.attributes.Float("momentum") > 0 && !types.has_input(4)) {
      return OpError("sgd_update",
                     "input 'momentum buffer' is missing, but attribute 'momentum' is above 0");
    }
    return types_match(types);
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
