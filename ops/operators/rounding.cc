#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterRounding(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "floor",
                          .doc = "y = the largest integer not above x; gradient zero",
                          .onnx = OnnxForm{"Floor", {}}}));
  registry.Add(MakeUnary({.name = "ceil",
                          .doc = "y = the smallest integer not below x; gradient zero",
                          .onnx = OnnxForm{"Ceil", {}}}));
  registry.Add(MakeUnary({.name = "round",
                          .doc = "y = the nearest integer, of two the even one; gradient zero",
                          .onnx = OnnxForm{"Round", {}}}));
}

}  // namespace espalier
