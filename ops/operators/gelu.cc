#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterGelu(OpRegistry& registry) {
  OpDef def =
      MakeUnary({.name = "gelu",
                 .doc = "y = x * Phi(x), Phi the normal distribution; or its tanh approximation",
                 .flops = 30,
                 .saves = Saves::kInput});
  def.attributes = {{.name = "approximate",
                     .kind = AttributeKind::kString,
                     .default_value = std::string("none"),
                     .doc = "none: by the error function; tanh: as in GPT-2"}};
  def.infer = [same_type =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const std::string approximate = types.attributes.String("approximate");
    if (approximate != "none" && approximate != "tanh") {
      return AttributeError("gelu", "approximate", "'" + approximate + "'", "'none' or 'tanh'");
    }
    return same_type(types);
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
