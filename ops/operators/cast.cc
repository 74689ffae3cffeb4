#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferCast(const NodeTypes& types) {
  const std::string name = types.attributes.String("to");
  const DType dtype = DTypeFromName(name);
  if (dtype == DType::kInvalid) {
    return AttributeError("cast", "to", "'" + name + "'",
                          "f32, bf16, f16, i32, i64, bool, i8 or u8");
  }
  return std::vector<TensorType>{{dtype, types.inputs[0].dims}};
}

}  // namespace

void RegisterCast(OpRegistry& registry) {
  OpDef def = MakeUnary({.name = "cast",
                         .doc = "y = x in another element type; numbers become integers by "
                                "truncation, clamped to the range, NaN becomes 0",
                         .any_type = true});
  def.attributes = {{.name = "to",
                     .kind = AttributeKind::kString,
                     .required = true,
                     .doc = "name of the element type"}};
  def.types = ElementTypes("FISB");
  def.infer = InferCast;
  registry.Add(std::move(def));
}

}  // namespace espalier
