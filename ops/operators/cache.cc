#include <utility>

#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterCache(OpRegistry& registry) {
  OpDef def;
  def.name = "cache";
  def.doc =
      "x, state like x -> like x; training: state becomes x (input 1 is written), y = x; otherwise "
      "y = state if use_cached, else x";
  def.inputs = {{"x"}, {"state"}};
  def.attributes = {
      {"use_cached", AttributeKind::kBool, true, false, "answer with the state when not training"}};
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const InputRef x{"cache", "x", types.inputs[0]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameType({"cache", "state", types.inputs[1]}, x));
    return std::vector<TensorType>{x.type};
  };
  def.split = [](const NodeTypes& types) {
    SplitRule rule;
    const Dims& dims = types.inputs[0].dims;
    rule.inputs.assign(2, AddLeadingAxes(dims, dims.size(), &rule));
    rule.outputs = {rule.inputs[0]};
    return rule;
  };
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
