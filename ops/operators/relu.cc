#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterRelu(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "relu",
                          .doc = "y = max(x, 0); NaN stays NaN",
                          .saves = Saves::kOutput,
                          .onnx = OnnxForm{"Relu", {}}}));
}

}  // namespace espalier
