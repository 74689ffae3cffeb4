#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterLog(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "log",
                          .doc = "y = natural logarithm of x",
                          .flops = 15,
                          .saves = Saves::kInput,
                          .precision = Precision::kF32,
                          .onnx = OnnxForm{"Log", {}}}));
}

}  // namespace espalier
