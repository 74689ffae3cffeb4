#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSqrt(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "sqrt",
                          .doc = "y = sqrt(x)",
                          .flops = 4,
                          .saves = Saves::kOutput,
                          .onnx = OnnxForm{"Sqrt", {}}}));
}

}  // namespace espalier
