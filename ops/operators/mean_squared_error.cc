#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const NodeTypes& types) {
  const InputRef prediction{"mean_squared_error", "prediction", types.inputs[0]};
  ESPALIER_RETURN_IF_ERROR(ExpectDType(prediction, {DType::kF32}));
  ESPALIER_RETURN_IF_ERROR(
      ExpectSameType({"mean_squared_error", "target", types.inputs[1]}, prediction));
  return std::vector<TensorType>{{DType::kF32, {}}};
}

}  // namespace

void RegisterMeanSquaredError(OpRegistry& registry) {
  OpDef def;
  def.name = "mean_squared_error";
  def.doc = "mean of (prediction - target)^2 over all elements";
  def.inputs = {{"prediction"}, {"target"}};
  def.attributes = {{.name = "count",
                     .kind = AttributeKind::kInt,
                     .doc = "number of elements of the whole tensor; filled in"}};
  def.infer = Infer;
  def.canonicalize = [](const NodeTypes& types, Attributes* attributes) {
    attributes->Set("count", types.inputs[0].num_elements());
  };
  def.split = [](const NodeTypes& types) { return SplitIntoScalars(types, false); };
  def.cost = [](const NodeTypes& types) {
    return Cost{3.0 * static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .differentiable = {0, 1}};
  def.is_loss = true;
  registry.Add(std::move(def));
}

}  // namespace espalier
