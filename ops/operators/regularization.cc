// L1 and L2 penalties of parameters: their gradient, and their loss.
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

OpDef MakeRegularization(const std::string& name, const std::string& doc,
                         double flops_per_element) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"parameter"}};
  def.attributes = {{.name = "l1", .kind = AttributeKind::kFloat, .default_value = 0.0},
                    {.name = "l2", .kind = AttributeKind::kFloat, .default_value = 0.0}};
  def.cost = [flops_per_element](const NodeTypes& types) {
    return Cost{flops_per_element * static_cast<double>(types.inputs[0].num_elements()),
                OperandBytes(types)};
  };
  return def;
}

absl::Status Check(const std::string& name, const NodeTypes& types) {
  ESPALIER_RETURN_IF_ERROR(ExpectInRange(name, types.attributes, "l1", 0, 1e6));
  ESPALIER_RETURN_IF_ERROR(ExpectInRange(name, types.attributes, "l2", 0, 1e6));
  return ExpectDType({name, "parameter", types.inputs[0]}, {DType::kF32});
}

}  // namespace

void RegisterRegularization(OpRegistry& registry) {
  OpDef loss = MakeRegularization("regularization_loss", "l1 * sum |p| + l2 * sum p^2", 4);
  loss.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(Check("regularization_loss", types));
    return std::vector<TensorType>{{DType::kF32, {}}};
  };
  loss.split = [](const NodeTypes& types) { return SplitIntoScalars(types, true); };
  registry.Add(std::move(loss));

  OpDef gradient = MakeRegularization(
      "regularize_gradient",
      "parameter, gradient, scale (f32 scalar)? -> gradient + scale * (l1 * sign(p) + 2 * l2 * p)",
      4);
  gradient.inputs.push_back({"gradient"});
  gradient.inputs.push_back({"scale", /*optional=*/true});
  gradient.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    ESPALIER_RETURN_IF_ERROR(Check("regularize_gradient", types));
    ESPALIER_RETURN_IF_ERROR(ExpectSameType({"regularize_gradient", "gradient", types.inputs[1]},
                                            {"regularize_gradient", "parameter", types.inputs[0]}));
    if (types.has_input(2)) {
      const InputRef scale{"regularize_gradient", "scale", types.inputs[2]};
      ESPALIER_RETURN_IF_ERROR(ExpectDType(scale, {DType::kF32}));
      ESPALIER_RETURN_IF_ERROR(ExpectRank(scale, 0));
    }
    return std::vector<TensorType>{types.inputs[0]};
  };
  gradient.split = [](const NodeTypes& types) {
    SplitRule rule = SplitAlike(types);
    if (rule.inputs.size() > 2) rule.inputs[2] = {};
    return rule;
  };
  registry.Add(std::move(gradient));
}

}  // namespace espalier
