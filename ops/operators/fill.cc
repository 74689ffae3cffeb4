#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferFill(const NodeTypes& types) {
  const Dims dims = types.attributes.Ints("dims");
  for (int64_t dim : dims) {
    if (dim < 0) return AttributeError("fill", "dims", ToString(dims), "sizes of at least 0");
  }
  const std::string name = types.attributes.String("dtype");
  const DType dtype = DTypeFromName(name);
  if (dtype == DType::kInvalid) {
    return AttributeError("fill", "dtype", "'" + name + "'", "f32, bf16, f16, i32, i64 or bool");
  }
  return std::vector<TensorType>{{dtype, dims}};
}

}  // namespace

void RegisterFill(OpRegistry& registry) {
  OpDef def;
  def.name = "fill";
  def.doc = "y[dims] = value everywhere";
  def.attributes = {
      {.name = "dims",
       .kind = AttributeKind::kInts,
       .default_value = Dims{},
       .doc = "shape of the whole tensor"},
      {.name = "value", .kind = AttributeKind::kFloat, .default_value = 0.0, .doc = "the value"},
      {.name = "dtype",
       .kind = AttributeKind::kString,
       .default_value = std::string("f32"),
       .doc = "element type"},
  };
  def.infer = InferFill;
  def.split = SplitAlike;
  registry.Add(std::move(def));
}

}  // namespace espalier
