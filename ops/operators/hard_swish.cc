#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterHardSwish(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "hard_swish",
                          .doc = "y = x * min(max(x / 6 + 1 / 2, 0), 1)",
                          .flops = 5,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"HardSwish", {}}}));
  registry.Add(
      MakeUnary({.name = "hard_sigmoid",
                 .doc = "y = min(max(alpha * x + beta, 0), 1)",
                 .flops = 4,
                 .saves = Saves::kOutput,
                 .attributes = {FloatAttribute("alpha", 0.2, "slope"),
                                FloatAttribute("beta", 0.5, "value at zero")},
                 .onnx = OnnxForm{"HardSigmoid", {{"alpha", "alpha"}, {"beta", "beta"}}}}));
}

}  // namespace espalier
