#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSign(OpRegistry& registry) {
  registry.Add(MakeUnary(
      {.name = "neg",
       .doc = "y = -x; integers wrap",
       .types = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64, DType::kI8},
       .onnx = OnnxForm{"Neg", {}}}));
  registry.Add(MakeUnary({.name = "abs",
                          .doc = "y = |x|; gradient zero at zero",
                          .saves = Saves::kInput,
                          .types = ElementTypes("FIS"),
                          .onnx = OnnxForm{"Abs", {}}}));
  registry.Add(MakeUnary({.name = "sign",
                          .doc = "y = -1, 0 or 1, NaN for NaN; gradient zero",
                          .types = ElementTypes("FIS"),
                          .onnx = OnnxForm{"Sign", {}}}));
}

}  // namespace espalier
