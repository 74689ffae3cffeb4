#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/reshape.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferSqueeze(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  absl::StatusOr<std::vector<bool>> removed =
      MarkAxes("squeeze", types.attributes.Ints("axes"), x.dims.size());
  if (!removed.ok()) return removed.status();
  TensorType y{x.dtype, {}};
  for (size_t d = 0; d < x.dims.size(); ++d) {
    if (!(*removed)[d]) {
      y.dims.push_back(x.dims[d]);
    } else if (x.dims[d] != 1) {
      return OpError("squeeze", absl::StrCat("dimension ", d, " of input 'x' with shape ",
                                             ToString(x.dims), " is ", x.dims[d], ", expected 1"));
    }
  }
  return std::vector<TensorType>{y};
}

}  // namespace

void RegisterSqueeze(OpRegistry& registry) {
  OpDef def;
  def.name = "squeeze";
  def.doc = "y = x without the dimensions `axes`, which have size 1";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "axes",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "dimensions of x, from the end if negative"}};
  def.types = ElementTypes("FISB");
  def.infer = InferSqueeze;
  def.split = SplitRegrouped;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
