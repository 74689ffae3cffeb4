#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSoftmax(OpRegistry& registry) {
  OpDef def;
  def.name = "softmax";
  def.doc = "x -> exp(x) / sum(exp(x)) along axis";
  def.inputs = {{"x"}};
  def.attributes = {{"axis", AttributeKind::kInt, int64_t{-1}, false, "negative: from the end"}};
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const InputRef x{"softmax", "x", types.inputs[0]};
    ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
    absl::StatusOr<int> axis = NormalizeAxis("softmax", "axis", types.attributes.Int("axis"),
                                             static_cast<int>(x.type.dims.size()));
    if (!axis.ok()) return axis.status();
    return std::vector<TensorType>{x.type};
  };
  def.split = [](const NodeTypes& types) {
    const Dims& x = types.inputs[0].dims;
    const int64_t given = types.attributes.Int("axis");
    const size_t axis = given < 0 ? given + x.size() : given;
    SplitRule rule;
    std::vector<int> map;
    for (size_t d = 0; d < x.size(); ++d) {
      map.push_back(d == axis ? kNotSplit : static_cast<int>(rule.axes.size()));
      if (d == axis) continue;
      rule.axes.push_back({d == 0 ? "sample" : "dim" + std::to_string(d),
                           d == 0 ? AxisKind::kSample : AxisKind::kAttribute, x[d]});
    }
    rule.inputs = {map};
    rule.outputs = {map};
    return rule;
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{10.0 * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {}, .needs_outputs = {0}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
