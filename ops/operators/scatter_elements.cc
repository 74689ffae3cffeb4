#include "ops/operators/elementwise.h"
#include "ops/operators/scatter.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferScatterElements(const NodeTypes& types) {
  const InputRef x{"scatter_elements", "x", types.inputs[0]};
  const InputRef indices{"scatter_elements", "indices", types.inputs[1]};
  const InputRef updates{"scatter_elements", "updates", types.inputs[2]};
  ESPALIER_RETURN_IF_ERROR(ExpectElementIndices("scatter_elements", types));
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(updates, x));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(updates,
                                       {indices.type.dims.begin(), indices.type.dims.end()},
                                       "input 'indices' has that shape"));
  ESPALIER_RETURN_IF_ERROR(ExpectReduction(x, types.attributes));
  return std::vector<TensorType>{types.inputs[0]};
}

}  // namespace

void RegisterScatterElements(OpRegistry& registry) {
  OpDef def;
  def.name = "scatter_elements";
  def.doc =
      "y = x, where y[i... with indices[i...] in place of i along axis] becomes or is combined "
      "with "
      "updates[i...], one after the other";
  def.inputs = {{"x"}, {"indices"}, {"updates"}};
  def.attributes = {{.name = "axis",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{0},
                     .doc = "dimension of x that is written, from the end if negative"},
                    ReductionAttribute()};
  def.types = ElementTypes("FISB");
  def.infer = InferScatterElements;
  def.split = [](const NodeTypes& types) {
    SplitRule rule = SplitElementIndices(types, /*split_axis=*/false);
    rule.inputs.push_back(rule.inputs[1]);
    rule.outputs = {rule.inputs[0]};
    return rule;
  };
  def.gradient =
      Gradient{.needs_inputs = {1}, .differentiable = {0, 2}, .refusal = RefuseScatterGradient};
  registry.Add(std::move(def));
}

}  // namespace espalier
