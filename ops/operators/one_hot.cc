#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

// The position of the new dimension in y.
int64_t OneHotAxis(const NodeTypes& types) {
  const int64_t axis = types.attributes.Int("axis");
  return axis < 0 ? axis + static_cast<int64_t>(types.inputs[0].dims.size()) + 1 : axis;
}

absl::StatusOr<std::vector<TensorType>> InferOneHot(const NodeTypes& types) {
  const TensorType& indices = types.inputs[0];
  const int64_t depth = types.attributes.Int("depth");
  ESPALIER_RETURN_IF_ERROR(ExpectPositive("one_hot", "depth", depth));
  const int64_t axis = types.attributes.Int("axis"),
                rank = static_cast<int64_t>(indices.dims.size()) + 1;
  if (axis < -rank || axis >= rank) {
    return AttributeError("one_hot", "axis", absl::StrCat(axis),
                          absl::StrCat("a value from ", -rank, " to ", rank - 1,
                                       " because the output has ", rank, " dimensions"));
  }
  const std::string name = types.attributes.String("dtype");
  TensorType y{DTypeFromName(name), indices.dims};
  if (y.dtype == DType::kInvalid) {
    return AttributeError("one_hot", "dtype", absl::StrCat("'", name, "'"),
                          "f32, bf16, f16, i32, i64, bool, i8 or u8");
  }
  y.dims.insert(y.dims.begin() + OneHotAxis(types), depth);
  return std::vector<TensorType>{y};
}

SplitRule SplitOneHot(const NodeTypes& types) {
  SplitRule rule;
  const Dims& indices = types.inputs[0].dims;
  const std::vector<int> axes = AddLeadingAxes(indices, indices.size(), &rule);
  rule.inputs = {axes};
  rule.outputs = {axes};
  rule.outputs[0].insert(rule.outputs[0].begin() + OneHotAxis(types), kNotSplit);
  return rule;
}

}  // namespace

void RegisterOneHot(OpRegistry& registry) {
  OpDef def;
  def.name = "one_hot";
  def.doc =
      "y[i..., c, ...] = on where indices[i..., ...] is c, otherwise off; negative indices count "
      "from depth, and one out of range gives off everywhere, as in ONNX";
  def.inputs = {{"indices"}};
  def.attributes = {
      {.name = "depth", .kind = AttributeKind::kInt, .required = true, .doc = "number of classes"},
      {.name = "axis",
       .kind = AttributeKind::kInt,
       .default_value = int64_t{-1},
       .doc = "where the classes lie in y, from the end if negative"},
      {.name = "on", .kind = AttributeKind::kFloat, .default_value = 1.0, .doc = "value there"},
      {.name = "off", .kind = AttributeKind::kFloat, .default_value = 0.0, .doc = "elsewhere"},
      {.name = "dtype",
       .kind = AttributeKind::kString,
       .default_value = "f32",
       .doc = "element type of y"}};
  def.types = {DType::kI32, DType::kI64};
  def.infer = InferOneHot;
  def.split = SplitOneHot;
  registry.Add(std::move(def));
}

}  // namespace espalier
