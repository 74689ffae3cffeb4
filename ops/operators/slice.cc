#include "ops/kernel/slice.h"

#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferSlice(const NodeTypes& types) {
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
  absl::StatusOr<std::vector<bool>> marked = MarkAxes("slice", axes, x.dims.size());
  if (!marked.ok()) return marked.status();
  TensorType y = x;
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = axes[i] < 0 ? axes[i] + x.dims.size() : axes[i];
    const int64_t step = steps.empty() ? 1 : steps[i];
    if (step == 0) return AttributeError("slice", "steps", ToString(Dims(steps)), "no step of 0");
    y.dims[axis] = SliceRange(starts[i], ends[i], step, x.dims[axis]).count;
  }
  return std::vector<TensorType>{y};
}

// Bounds refer to the whole tensor, so a sliced dimension is not split.
SplitRule SplitSlice(const NodeTypes& types) {
  return SplitAllBut(*MarkAxes("slice", types.attributes.Ints("axes"), types.inputs[0].dims.size()),
                     types);
}

}  // namespace

void RegisterSlice(OpRegistry& registry) {
  OpDef def;
  def.name = "slice";
  def.doc = "y = x[start:end:step] along each of axes, with numpy's meaning";
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
                     .doc = "all 1 if empty; negative: backwards"}};
  def.types = ElementTypes("FISB");
  def.infer = InferSlice;
  def.split = SplitSlice;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
