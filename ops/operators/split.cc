#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferSplit(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  absl::StatusOr<int> axis =
      NormalizeAxis("split", "axis", types.attributes.Int("axis"), static_cast<int>(x.dims.size()));
  if (!axis.ok()) return axis.status();
  const std::vector<int64_t> sizes = types.attributes.Ints("sizes");
  int64_t left = x.dims[*axis];
  bool good = !sizes.empty();
  for (int64_t size : sizes) {
    good = good && size >= 0 && size <= left;
    if (good) left -= size;
  }
  if (!good || left != 0) {
    return AttributeError("split", "sizes", ToString(Dims(sizes)),
                          absl::StrCat("sizes that add up to ", x.dims[*axis], ", dimension ",
                                       *axis, " of input 'x' with shape ", ToString(x.dims)));
  }
  std::vector<TensorType> outputs(sizes.size(), x);
  for (size_t i = 0; i < sizes.size(); ++i) outputs[i].dims[*axis] = sizes[i];
  return outputs;
}

SplitRule SplitSplit(const NodeTypes& types) {
  const size_t rank = types.inputs[0].dims.size();
  const int64_t axis = types.attributes.Int("axis");
  std::vector<bool> whole(rank, false);
  whole[axis < 0 ? axis + static_cast<int64_t>(rank) : axis] = true;
  return SplitAllBut(whole, types);
}

}  // namespace

void RegisterSplit(OpRegistry& registry) {
  OpDef def;
  def.name = "split";
  def.doc = "y0, y1, ... = consecutive pieces of x along axis";
  def.inputs = {{"x"}};
  def.num_outputs = -1;
  def.attributes = {
      {.name = "axis",
       .kind = AttributeKind::kInt,
       .required = true,
       .doc = "from the end if negative"},
      {.name = "sizes", .kind = AttributeKind::kInts, .required = true, .doc = "of the pieces"}};
  def.types = ElementTypes("FISB");
  def.infer = InferSplit;
  def.split = SplitSplit;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
