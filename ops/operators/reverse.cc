#include "ops/operators/elementwise.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<bool>> Reversed(const NodeTypes& types) {
  return MarkAxes("reverse", types.attributes.Ints("axes"), types.inputs[0].dims.size());
}

absl::StatusOr<std::vector<TensorType>> InferReverse(const NodeTypes& types) {
  if (auto reversed = Reversed(types); !reversed.ok()) return reversed.status();
  return std::vector<TensorType>{types.inputs[0]};
}

}  // namespace

void RegisterReverse(OpRegistry& registry) {
  OpDef def;
  def.name = "reverse";
  def.doc = "y = x with the elements along each of axes in the opposite order";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "axes",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "dimensions, from the end if negative"}};
  def.types = ElementTypes("FISB");
  def.infer = InferReverse;
  def.split = [](const NodeTypes& types) { return SplitAllBut(*Reversed(types), types); };
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
