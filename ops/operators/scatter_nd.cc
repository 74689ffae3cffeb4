#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/scatter.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferScatterNd(const NodeTypes& types) {
  const InputRef x{"scatter_nd", "x", types.inputs[0]};
  const InputRef updates{"scatter_nd", "updates", types.inputs[2]};
  const Dims& indices = types.inputs[1].dims;
  ESPALIER_RETURN_IF_ERROR(ExpectNdIndices("scatter_nd", types, 0));
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(updates, x));
  std::vector<ExpectedDim> expected(indices.begin(), indices.end() - 1);
  expected.insert(expected.end(), x.type.dims.begin() + indices.back(), x.type.dims.end());
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(updates, expected,
                  absl::StrCat("input 'x' has shape ", ToString(x.type.dims),
                               " and input 'indices' has shape ", ToString(indices))));
  ESPALIER_RETURN_IF_ERROR(ExpectReduction(x, types.attributes));
  return std::vector<TensorType>{types.inputs[0]};
}

// An update may go anywhere in the indexed dimensions; the others are independent.
SplitRule SplitScatterNd(const NodeTypes& types) {
  const Dims &x = types.inputs[0].dims, &indices = types.inputs[1].dims;
  const size_t rank = types.inputs[2].dims.size(), depth = static_cast<size_t>(indices.back());
  SplitRule rule;
  std::vector<int> x_axes(x.size(), kNotSplit), update_axes(rank, kNotSplit);
  for (size_t d = depth; d < x.size(); ++d) {
    x_axes[d] = update_axes[d + rank - x.size()] = static_cast<int>(rule.axes.size());
    rule.axes.push_back({d == 0 ? "sample" : absl::StrCat("dim", d),
                         d == 0 ? AxisKind::kSample : AxisKind::kAttribute, x[d]});
  }
  rule.inputs = {x_axes, std::vector<int>(indices.size(), kNotSplit), update_axes};
  rule.outputs = {x_axes};
  return rule;
}

}  // namespace

void RegisterScatterNd(OpRegistry& registry) {
  OpDef def;
  def.name = "scatter_nd";
  def.doc =
      "y = x, where y[indices[i..., 0], indices[i..., 1], ..., ...] becomes or is combined with "
      "updates[i..., ...], one after the other";
  def.inputs = {{"x"}, {"indices"}, {"updates"}};
  def.attributes = {ReductionAttribute()};
  def.types = ElementTypes("FISB");
  def.infer = InferScatterNd;
  def.split = SplitScatterNd;
  def.gradient =
      Gradient{.needs_inputs = {1}, .differentiable = {0, 2}, .refusal = RefuseScatterGradient};
  registry.Add(std::move(def));
}

}  // namespace espalier
