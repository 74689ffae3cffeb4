#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterCompare(OpRegistry& registry) {
  registry.Add(MakeBinary({.name = "equal",
                           .doc = "y = whether a is b, with numpy's broadcasting",
                           .types = ElementTypes("FISB"),
                           .output = DType::kBool,
                           .differentiable = false,
                           .onnx = OnnxForm{"Equal", {}}}));
  registry.Add(MakeBinary({.name = "not_equal",
                           .doc = "y = whether a is not b, with numpy's broadcasting",
                           .types = ElementTypes("FISB"),
                           .output = DType::kBool,
                           .differentiable = false}));
  registry.Add(MakeBinary({.name = "less",
                           .doc = "y = whether a < b, with numpy's broadcasting",
                           .types = ElementTypes("FIS"),
                           .output = DType::kBool,
                           .differentiable = false,
                           .onnx = OnnxForm{"Less", {}}}));
  registry.Add(MakeBinary({.name = "less_equal",
                           .doc = "y = whether a <= b, with numpy's broadcasting",
                           .types = ElementTypes("FIS"),
                           .output = DType::kBool,
                           .differentiable = false,
                           .onnx = OnnxForm{"LessOrEqual", {}}}));
  registry.Add(MakeBinary({.name = "greater",
                           .doc = "y = whether a > b, with numpy's broadcasting",
                           .types = ElementTypes("FIS"),
                           .output = DType::kBool,
                           .differentiable = false,
                           .onnx = OnnxForm{"Greater", {}}}));
  registry.Add(MakeBinary({.name = "greater_equal",
                           .doc = "y = whether a >= b, with numpy's broadcasting",
                           .types = ElementTypes("FIS"),
                           .output = DType::kBool,
                           .differentiable = false,
                           .onnx = OnnxForm{"GreaterOrEqual", {}}}));
}

}  // namespace espalier
