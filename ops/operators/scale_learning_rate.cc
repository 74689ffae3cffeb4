#include "ops/operators/expect.h"
#include "ops/operators/optimizer.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterScaleLearningRate(OpRegistry& registry) {
  OpDef def;
  def.name = "scale_learning_rate";
  def.doc = "hyper f32[2] = (learning rate, step) -> (factor * learning rate, step)";
  def.inputs = {{"hyper"}};
  def.attributes = {{.name = "factor",
                     .kind = AttributeKind::kFloat,
                     .required = true,
                     .doc = "of a group of parameters"}};
  def.infer = [](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const InputRef hyper{"scale_learning_rate", "hyper", types.inputs[0]};
    ESPALIER_RETURN_IF_ERROR(
        ExpectInRange("scale_learning_rate", types.attributes, "factor", 0, 1e6));
    ESPALIER_RETURN_IF_ERROR(ExpectDType(hyper, {DType::kF32}));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(hyper, {int64_t{2}}));
    return std::vector<TensorType>{hyper.type};
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
