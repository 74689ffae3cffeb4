#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterTrigonometry(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "sin",
                          .doc = "y = sin(x)",
                          .flops = 15,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"Sin", {}}}));
  registry.Add(MakeUnary({.name = "cos",
                          .doc = "y = cos(x)",
                          .flops = 15,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"Cos", {}}}));
  registry.Add(MakeUnary({.name = "tan",
                          .doc = "y = tan(x)",
                          .flops = 20,
                          .saves = Saves::kOutput,
                          .precision = Precision::kF32,
                          .onnx = OnnxForm{"Tan", {}}}));
  registry.Add(MakeUnary({.name = "asin",
                          .doc = "y = asin(x)",
                          .flops = 30,
                          .saves = Saves::kInput,
                          .precision = Precision::kF32,
                          .onnx = OnnxForm{"Asin", {}}}));
  registry.Add(MakeUnary({.name = "acos",
                          .doc = "y = acos(x)",
                          .flops = 30,
                          .saves = Saves::kInput,
                          .precision = Precision::kF32,
                          .onnx = OnnxForm{"Acos", {}}}));
  registry.Add(MakeUnary({.name = "atan",
                          .doc = "y = atan(x)",
                          .flops = 20,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"Atan", {}}}));
  registry.Add(MakeUnary({.name = "sinh",
                          .doc = "y = sinh(x)",
                          .flops = 20,
                          .saves = Saves::kInput,
                          .precision = Precision::kF32,
                          .onnx = OnnxForm{"Sinh", {}}}));
  registry.Add(MakeUnary({.name = "cosh",
                          .doc = "y = cosh(x)",
                          .flops = 20,
                          .saves = Saves::kInput,
                          .precision = Precision::kF32,
                          .onnx = OnnxForm{"Cosh", {}}}));
  registry.Add(MakeUnary({.name = "asinh",
                          .doc = "y = asinh(x)",
                          .flops = 30,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"Asinh", {}}}));
  registry.Add(MakeUnary({.name = "acosh",
                          .doc = "y = acosh(x)",
                          .flops = 30,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"Acosh", {}}}));
  registry.Add(MakeUnary({.name = "atanh",
                          .doc = "y = atanh(x)",
                          .flops = 25,
                          .saves = Saves::kInput,
                          .onnx = OnnxForm{"Atanh", {}}}));
}

}  // namespace espalier
