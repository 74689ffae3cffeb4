#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

std::vector<AttributeSpec> Value() {
  return {{.name = "value",
           .kind = AttributeKind::kFloat,
           .default_value = std::nullopt,
           .required = true,
           .doc = "the number"}};
}

}  // namespace

void RegisterScalar(OpRegistry& registry) {
  registry.Add(MakeUnary({.name = "add_scalar", .doc = "y = x + value", .attributes = Value()}));
  registry.Add(
      MakeUnary({.name = "subtract_scalar", .doc = "y = x - value", .attributes = Value()}));
  registry.Add(
      MakeUnary({.name = "multiply_scalar", .doc = "y = x * value", .attributes = Value()}));
  registry.Add(MakeUnary(
      {.name = "divide_scalar", .doc = "y = x / value", .flops = 4, .attributes = Value()}));
  registry.Add(MakeUnary({.name = "power_scalar",
                          .doc = "y = x to the power of value",
                          .flops = 30,
                          .saves = Saves::kInput,
                          .attributes = Value(),
                          .precision = Precision::kF32}));
}

}  // namespace espalier
