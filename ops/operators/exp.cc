#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterExp(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "exp",
                          .doc = "y = exp(x)",
                          .flops = 12,
                          .saves = Saves::kOutput,
                          .precision = Precision::kF32,
                          .onnx = OnnxForm{"Exp", {}}}));
}

}  // namespace espalier
