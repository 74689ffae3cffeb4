#include "ops/operators/unsplit_axes.h"

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"

namespace espalier {

absl::StatusOr<std::vector<bool>> MarkAxes(absl::string_view op, const std::vector<int64_t>& axes,
                                           size_t rank) {
  std::vector<bool> marked(rank, false);
  for (int64_t given : axes) {
    absl::StatusOr<int> axis = NormalizeAxis(op, "axes", given, static_cast<int>(rank));
    if (!axis.ok()) return axis.status();
    if (marked[*axis]) {
      return AttributeError(op, "axes", ToString(Dims(axes)), "each dimension at most once");
    }
    marked[*axis] = true;
  }
  return marked;
}

SplitRule SplitAllBut(const std::vector<bool>& whole, const NodeTypes& types) {
  SplitRule rule;
  const Dims& dims = types.inputs[0].dims;
  std::vector<int> axes(dims.size(), kNotSplit);
  for (size_t d = 0; d < dims.size(); ++d) {
    if (whole[d]) continue;
    axes[d] = static_cast<int>(rule.axes.size());
    rule.axes.push_back({d == 0 ? "sample" : absl::StrCat("dim", d),
                         d == 0 ? AxisKind::kSample : AxisKind::kAttribute, dims[d]});
  }
  rule.inputs.assign(types.inputs.size(), axes);
  rule.outputs.assign(types.outputs.size(), axes);
  return rule;
}

SplitRule SplitAllButAxis(const NodeTypes& types) {
  std::vector<bool> whole(types.inputs[0].dims.size(), false);
  const int64_t axis = types.attributes.Int("axis");
  whole[axis < 0 ? axis + static_cast<int64_t>(whole.size()) : axis] = true;
  return SplitAllBut(whole, types);
}

}  // namespace espalier
