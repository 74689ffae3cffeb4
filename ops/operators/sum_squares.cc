#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferSumSquares(const NodeTypes& types) {
  ESPALIER_RETURN_IF_ERROR(ExpectFloat({"sum_squares", "x", types.inputs[0]}));
  return std::vector<TensorType>{{DType::kF32, {}}};
}

}  // namespace

void RegisterSumSquares(OpRegistry& registry) {
  OpDef def;
  def.name = "sum_squares";
  def.doc = "f32 scalar: sum of x^2 over all elements";
  def.inputs = {{"x"}};
  def.infer = InferSumSquares;
  def.split = [](const NodeTypes& types) { return SplitIntoScalars(types, true); };
  def.cost = [](const NodeTypes& types) {
    return Cost{2.0 * static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
