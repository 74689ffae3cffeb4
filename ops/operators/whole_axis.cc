#include "ops/operators/whole_axis.h"

#include "absl/strings/str_cat.h"

namespace espalier {

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

}  // namespace espalier
