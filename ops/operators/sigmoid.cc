#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSigmoid(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "sigmoid",
                          .doc = "y = 1 / (1 + exp(-x))",
                          .flops = 15,
                          .saves = Saves::kOutput,
                          .onnx = OnnxForm{"Sigmoid", {}}}));
}

}  // namespace espalier
