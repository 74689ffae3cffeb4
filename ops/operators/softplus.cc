#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSoftplus(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "softplus",
                          .doc = "y = log(1 + exp(x))",
                          .flops = 30,
                          .saves = Saves::kInput,
                          .precision = Precision::kF32,
                          .onnx = OnnxForm{"Softplus", {}}}));
  registry.Add(MakeUnary({.name = "softsign",
                          .doc = "y = x / (1 + |x|)",
                          .flops = 5,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"Softsign", {}}}));
  registry.Add(MakeUnary({.name = "mish",
                          .doc = "y = x * tanh(softplus(x))",
                          .flops = 20,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"Mish", {}}}));
}

}  // namespace espalier
