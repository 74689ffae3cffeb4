#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterTanh(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "tanh",
                          .doc = "y = tanh(x)",
                          .flops = 25,
                          .saves = Saves::kOutput,
                          .onnx = OnnxForm{"Tanh", {}}}));
}

}  // namespace espalier
