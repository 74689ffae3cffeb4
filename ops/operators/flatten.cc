#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/reshape.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferFlatten(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  const int64_t rank = static_cast<int64_t>(x.dims.size());
  int64_t axis = types.attributes.Int("axis");
  if (axis < -rank || axis > rank) {
    return AttributeError("flatten", "axis", absl::StrCat(axis),
                          absl::StrCat("a value from ", -rank, " to ", rank));
  }
  if (axis < 0) axis += rank;
  Dims dims = {1, 1};
  for (int64_t d = 0; d < rank; ++d) dims[d < axis ? 0 : 1] *= x.dims[d];
  return std::vector<TensorType>{{x.dtype, dims}};
}

}  // namespace

void RegisterFlatten(OpRegistry& registry) {
  OpDef def;
  def.name = "flatten";
  def.doc = "y[a, b] = x, a the product of the dimensions before axis, b of the others";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "axis",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{1},
                     .doc = "first dimension of the second group"}};
  def.types = ElementTypes("FISB");
  def.infer = InferFlatten;
  def.split = SplitRegrouped;
  def.gradient = Gradient{.differentiable = {0}};
  def.view = true;
  registry.Add(std::move(def));
}

}  // namespace espalier
