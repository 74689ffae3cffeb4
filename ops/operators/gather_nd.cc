#include "ops/operators/elementwise.h"
#include "ops/operators/scatter.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferGatherNd(const NodeTypes& types) {
  const TensorType &x = types.inputs[0], &indices = types.inputs[1];
  const int64_t batch_dims = types.attributes.Int("batch_dims");
  ESPALIER_RETURN_IF_ERROR(ExpectNdIndices("gather_nd", types, batch_dims));
  TensorType y{x.dtype, {indices.dims.begin(), indices.dims.end() - 1}};
  y.dims.insert(y.dims.end(), x.dims.begin() + batch_dims + indices.dims.back(), x.dims.end());
  return std::vector<TensorType>{y};
}

SplitRule SplitGatherNd(const NodeTypes& types) {
  const Dims &x = types.inputs[0].dims, &y = types.outputs[0].dims;
  const size_t batch_dims = static_cast<size_t>(types.attributes.Int("batch_dims"));
  const size_t places = types.inputs[1].dims.size() - 1;
  SplitRule rule;
  const std::vector<int> axes = AddLeadingAxes(y, y.size(), &rule);
  std::vector<int> x_axes(x.size(), kNotSplit);
  for (size_t d = 0; d < batch_dims; ++d) x_axes[d] = axes[d];
  for (size_t d = places; d < y.size(); ++d) x_axes[d + x.size() - y.size()] = axes[d];
  std::vector<int> index_axes(axes.begin(), axes.begin() + places);
  index_axes.push_back(kNotSplit);
  rule.inputs = {x_axes, index_axes};
  rule.outputs = {axes};
  return rule;
}

}  // namespace

void RegisterGatherNd(OpRegistry& registry) {
  OpDef def;
  def.name = "gather_nd";
  def.doc =
      "y[b..., i..., ...] = x[b..., indices[b..., i..., 0], indices[b..., i..., 1], ..., ...]; "
      "negative indices count from the end";
  def.inputs = {{"x"}, {"indices"}};
  def.attributes = {{.name = "batch_dims",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{0},
                     .doc = "leading dimensions that x and indices share"}};
  def.types = ElementTypes("FISB");
  def.onnx = OnnxForm{"GatherND", {{"batch_dims", "batch_dims"}}};
  def.infer = InferGatherNd;
  def.split = SplitGatherNd;
  def.gradient = Gradient{.needs_inputs = {1}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
