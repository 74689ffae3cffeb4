#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/whole_axis.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

// An index into [0, size], counted from the end if negative.
int64_t Clamp(int64_t index, int64_t size) {
  if (index < 0) index = index < -size ? 0 : index + size;
  return std::min(index, size);
}

absl::StatusOr<std::vector<TensorType>> Infer(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  const Attributes& attributes = types.attributes;
  const std::vector<int64_t> axes = attributes.Ints("axes"), starts = attributes.Ints("starts"),
                             ends = attributes.Ints("ends"), steps = attributes.Ints("steps");
  if (starts.size() != axes.size() || ends.size() != axes.size() ||
      (!steps.empty() && steps.size() != axes.size())) {
    return OpError("slice",
                   absl::StrCat("attributes 'axes', 'starts', 'ends' have ", axes.size(), ", ",
                                starts.size(), ", ", ends.size(), " values and 'steps' ",
                                steps.size(), ", expected one number of values for all"));
  }
  TensorType y = x;
  std::vector<bool> seen(x.dims.size(), false);
  for (size_t i = 0; i < axes.size(); ++i) {
    absl::StatusOr<int> axis =
        NormalizeAxis("slice", "axes", axes[i], static_cast<int>(x.dims.size()));
    if (!axis.ok()) return axis.status();
    if (seen[*axis]) {
      return AttributeError("slice", "axes", ToString(Dims(axes)), "each dimension at most once");
    }
    seen[*axis] = true;
    const int64_t step = steps.empty() ? 1 : steps[i];
    if (step <= 0) return AttributeError("slice", "steps", absl::StrCat(step), "positive steps");
    const int64_t size = x.dims[*axis];
    const int64_t length = Clamp(ends[i], size) - Clamp(starts[i], size);
    y.dims[*axis] = length <= 0 ? 0 : (length - 1) / step + 1;
  }
  return std::vector<TensorType>{y};
}

// Bounds are those of the whole tensor: a dimension that is cut by the slice is not split.
SplitRule Split(const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  std::vector<bool> whole(x.size(), false);
  for (int64_t axis : types.attributes.Ints("axes")) {
    whole[axis < 0 ? axis + static_cast<int64_t>(x.size()) : axis] = true;
  }
  return SplitAllBut(whole, types);
}

}  // namespace

void RegisterSlice(OpRegistry& registry) {
  OpDef def;
  def.name = "slice";
  def.doc = "y = x[start:end:step] along each of axes, with numpy's meaning; steps are positive";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "axes",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "dimensions, from the end if negative"},
                    {.name = "starts",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "first index, one for each of axes"},
                    {.name = "ends",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "index after the last, one for each of axes"},
                    {.name = "steps",
                     .kind = AttributeKind::kInts,
                     .default_value = std::vector<int64_t>{},
                     .doc = "all 1 if empty"}};
  def.infer = Infer;
  def.split = Split;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
