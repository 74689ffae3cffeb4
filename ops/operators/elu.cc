#include <string>
#include <utility>
#include <vector>

#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterElu(OpRegistry& registry) {
  registry.Add(
      MakeUnary({.name = "elu",
                 .doc = "y = x where x > 0, else alpha * (exp(x) - 1)",
                 .flops = 15,
                 .saves = Saves::kInput,
                 .attributes = {FloatAttribute("alpha", 1.0, "minus the limit at minus infinity")},
                 .onnx = OnnxForm{"Elu", {{"alpha", "alpha"}}}}));
  OpDef celu = MakeUnary(
      {.name = "celu",
       .doc = "y = x where x > 0, else alpha * (exp(x / alpha) - 1)",
       .flops = 15,
       .saves = Saves::kInput,
       .attributes = {FloatAttribute("alpha", 1.0, "minus the limit at minus infinity; not 0")},
       .onnx = OnnxForm{"Celu", {{"alpha", "alpha"}}}});
  celu.infer = [same_type =
                    celu.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    if (types.attributes.Float("alpha") == 0) {
      return AttributeError("celu", "alpha", "0", "a number other than 0");
    }
    return same_type(types);
  };
  registry.Add(std::move(celu));
  registry.Add(
      MakeUnary({.name = "selu",
                 .doc = "y = gamma * x where x > 0, else gamma * alpha * (exp(x) - 1)",
                 .flops = 15,
                 .saves = Saves::kInput,
                 .attributes = {FloatAttribute("alpha", 1.67326319217681884765625,
                                               "minus the limit at minus infinity, before gamma"),
                                FloatAttribute("gamma", 1.05070102214813232421875, "scale")},
                 .onnx = OnnxForm{"Selu", {{"alpha", "alpha"}, {"gamma", "gamma"}}}}));
}

}  // namespace espalier
