#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferAddN(const NodeTypes& types) {
  ESPALIER_RETURN_IF_ERROR(ExpectNumber("add_n", "x0", types.inputs[0]));
  for (size_t i = 1; i < types.inputs.size(); ++i) {
    const std::string name = absl::StrCat("x", i);
    ESPALIER_RETURN_IF_ERROR(
        ExpectSameType({"add_n", name, types.inputs[i]}, {"add_n", "x0", types.inputs[0]}));
  }
  return std::vector<TensorType>{types.inputs[0]};
}

}  // namespace

void RegisterAddN(OpRegistry& registry) {
  OpDef def;
  def.name = "add_n";
  def.doc = "y = x0 + x1 + ..., in this order";
  def.inputs = {{.name = "x", .variadic = true}};
  def.infer = InferAddN;
  def.split = SplitAlike;
  def.cost = [](const NodeTypes& types) {
    return Cost{static_cast<double>(types.inputs.size() - 1) *
                    static_cast<double>(types.outputs[0].num_elements()),
                OperandBytes(types)};
  };
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
