#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterErf(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "erf",
                          .doc = "y = 2 / sqrt(pi) * integral of exp(-t^2) from 0 to x",
                          .flops = 30,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"Erf", {}}}));
}

}  // namespace espalier
