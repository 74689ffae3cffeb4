#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterIsNan(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "is_nan",
                          .doc = "y = whether x is NaN",
                          .output = DType::kBool,
                          .differentiable = false,
                          .onnx = OnnxForm{"IsNaN", {}}}));
  registry.Add(MakeUnary({.name = "is_inf",
                          .doc = "y = whether x is infinite, of a sign that is asked for",
                          .attributes = {{.name = "detect_negative",
                                          .kind = AttributeKind::kBool,
                                          .default_value = true,
                                          .doc = "minus infinity counts"},
                                         {.name = "detect_positive",
                                          .kind = AttributeKind::kBool,
                                          .default_value = true,
                                          .doc = "plus infinity counts"}},
                          .output = DType::kBool,
                          .differentiable = false,
                          .onnx = OnnxForm{"IsInf",
                                           {{"detect_negative", "detect_negative"},
                                            {"detect_positive", "detect_positive"}}}}));
}

}  // namespace espalier
