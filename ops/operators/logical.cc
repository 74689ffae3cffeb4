#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterLogical(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "logical_not",
                          .doc = "y = not x",
                          .types = ElementTypes("B"),
                          .differentiable = false,
                          .onnx = OnnxForm{"Not", {}}}));
  registry.Add(MakeBinary({.name = "logical_and",
                           .doc = "y = a and b, with numpy's broadcasting",
                           .types = ElementTypes("B"),
                           .differentiable = false,
                           .onnx = OnnxForm{"And", {}}}));
  registry.Add(MakeBinary({.name = "logical_or",
                           .doc = "y = a or b, with numpy's broadcasting",
                           .types = ElementTypes("B"),
                           .differentiable = false,
                           .onnx = OnnxForm{"Or", {}}}));
  registry.Add(MakeBinary({.name = "logical_xor",
                           .doc = "y = whether a and b differ, with numpy's broadcasting",
                           .types = ElementTypes("B"),
                           .differentiable = false,
                           .onnx = OnnxForm{"Xor", {}}}));
}

}  // namespace espalier
