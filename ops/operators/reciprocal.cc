#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReciprocal(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "reciprocal",
                          .doc = "y = 1 / x",
                          .flops = 4,
                          .saves = Saves::kOutput,
                          .precision = Precision::kF32,
                          .onnx = OnnxForm{"Reciprocal", {}}}));
  registry.Add(MakeUnary({.name = "rsqrt",
                          .doc = "y = 1 / sqrt(x)",
                          .flops = 5,
                          .saves = Saves::kOutput,
                          .precision = Precision::kF32}));
}

}  // namespace espalier
