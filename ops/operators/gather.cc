#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

size_t GatherAxis(const NodeTypes& types) {
  const int64_t axis = types.attributes.Int("axis");
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(types.inputs[0].dims.size())
                                      : axis);
}

absl::StatusOr<std::vector<TensorType>> InferGather(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  const TensorType& indices = types.inputs[1];
  ESPALIER_RETURN_IF_ERROR(ExpectInteger({"gather", "indices", indices}));
  absl::StatusOr<int> axis = NormalizeAxis("gather", "axis", types.attributes.Int("axis"),
                                           static_cast<int>(x.dims.size()));
  if (!axis.ok()) return axis.status();
  Dims dims(x.dims.begin(), x.dims.begin() + *axis);
  dims.insert(dims.end(), indices.dims.begin(), indices.dims.end());
  dims.insert(dims.end(), x.dims.begin() + *axis + 1, x.dims.end());
  return std::vector<TensorType>{{x.dtype, dims}};
}

SplitRule SplitGather(const NodeTypes& types) {
  const size_t axis = GatherAxis(types), ids = types.inputs[1].dims.size();
  SplitRule rule;
  const Dims& y = types.outputs[0].dims;
  const std::vector<int> axes = AddLeadingAxes(y, y.size(), &rule);
  rule.outputs = {axes};
  std::vector<int> x_axes(axes.begin(), axes.begin() + axis);
  x_axes.push_back(kNotSplit);
  x_axes.insert(x_axes.end(), axes.begin() + axis + ids, axes.end());
  rule.inputs = {x_axes, {axes.begin() + axis, axes.begin() + axis + ids}};
  return rule;
}

}  // namespace

void RegisterGather(OpRegistry& registry) {
  OpDef def;
  def.name = "gather";
  def.doc =
      "y[..., i..., ...] = x[..., indices[i...], ...] along axis; negative indices count from the "
      "end";
  def.inputs = {{"x"}, {"indices"}};
  def.attributes = {{.name = "axis",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{0},
                     .doc = "dimension of x that is looked up, from the end if negative"}};
  def.types = ElementTypes("FISB");
  def.infer = InferGather;
  def.split = SplitGather;
  def.index_ranges = [](const NodeTypes& types) {
    const int64_t rows = types.inputs[0].dims[GatherAxis(types)];
    return std::vector<IndexRange>{{.input = 1, .low = -rows, .high = rows - 1}};
  };
  def.cost = [](const NodeTypes& types) {
    // Only the rows that are looked up are read.
    return Cost{0, static_cast<double>(2 * types.outputs[0].bytes() + types.inputs[1].bytes())};
  };
  def.gradient = Gradient{.needs_inputs = {1}, .differentiable = {0}};
  def.gradient->cost = [](const NodeTypes& forward) {
    return Cost{
        static_cast<double>(forward.outputs[0].num_elements()),
        static_cast<double>(2 * forward.inputs[0].bytes() + 2 * forward.outputs[0].bytes())};
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
