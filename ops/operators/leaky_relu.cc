#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterLeakyRelu(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "leaky_relu",
                          .doc = "y = x where x > 0, else alpha * x",
                          .flops = 2,
                          .saves = Saves::kInput,
                          .attributes = {FloatAttribute("alpha", 0.01, "slope below zero")},
                          .onnx = OnnxForm{"LeakyRelu", {{"alpha", "alpha"}}}}));
  registry.Add(MakeUnary({.name = "thresholded_relu",
                          .doc = "y = x where x > alpha, else 0",
                          .saves = Saves::kInput,
                          .attributes = {FloatAttribute("alpha", 1.0, "threshold")},
                          .onnx = OnnxForm{"ThresholdedRelu", {{"alpha", "alpha"}}}}));
  registry.Add(MakeUnary({.name = "shrink",
                          .doc = "y = x + bias where x < -lambd, x - bias where x > lambd, else 0",
                          .flops = 3,
                          .saves = Saves::kInput,
                          .attributes = {FloatAttribute("bias", 0.0, "what is taken off"),
                                         FloatAttribute("lambd", 0.5, "half the width of the gap")},
                          .onnx = OnnxForm{"Shrink", {{"bias", "bias"}, {"lambd", "lambd"}}}}));
}

}  // namespace espalier
