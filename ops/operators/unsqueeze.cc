#include "ops/operators/elementwise.h"
#include "ops/operators/reshape.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferUnsqueeze(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  const std::vector<int64_t> axes = types.attributes.Ints("axes");
  absl::StatusOr<std::vector<bool>> added =
      MarkAxes("unsqueeze", axes, x.dims.size() + axes.size());
  if (!added.ok()) return added.status();
  TensorType y{x.dtype, {}};
  size_t next = 0;
  for (bool is_new : *added) y.dims.push_back(is_new ? 1 : x.dims[next++]);
  return std::vector<TensorType>{y};
}

}  // namespace

void RegisterUnsqueeze(OpRegistry& registry) {
  OpDef def;
  def.name = "unsqueeze";
  def.doc = "y = x with dimensions of size 1 put in, so that they are dimensions `axes` of y";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "axes",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "dimensions of y, from the end if negative"}};
  def.types = ElementTypes("FISB");
  def.infer = InferUnsqueeze;
  def.split = SplitRegrouped;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
