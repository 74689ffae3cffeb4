#include "ops/operators/elementwise.h"
#include "ops/operators/scatter.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterGatherElements(OpRegistry& registry) {
  OpDef def;
  def.name = "gather_elements";
  def.doc =
      "y[i...] = x[i... with indices[i...] in place of i along axis]; negative indices count from "
      "the end";
  def.inputs = {{"x"}, {"indices"}};
  def.attributes = {{.name = "axis",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{0},
                     .doc = "dimension of x that is looked up, from the end if negative"}};
  def.types = ElementTypes("FISB");
  def.onnx = OnnxForm{"GatherElements", {{"axis", "axis"}}};
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(ExpectElementIndices("gather_elements", types));
    return std::vector<TensorType>{{types.inputs[0].dtype, types.inputs[1].dims}};
  };
  def.split = [](const NodeTypes& types) {
    SplitRule rule = SplitElementIndices(types, /*split_axis=*/true);
    rule.outputs = {rule.inputs[1]};
    return rule;
  };
  def.gradient = Gradient{.needs_inputs = {1}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
