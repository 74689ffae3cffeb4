#include "ops/operators/scatter.h"

#include "absl/strings/str_cat.h"

namespace espalier {

absl::Status ExpectElementIndices(absl::string_view op, const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  const InputRef indices{op, "indices", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectInteger(indices));
  absl::StatusOr<int> axis =
      NormalizeAxis(op, "axis", types.attributes.Int("axis"), static_cast<int>(x.size()));
  if (!axis.ok()) return axis.status();
  ESPALIER_RETURN_IF_ERROR(ExpectRank(indices, static_cast<int>(x.size())));
  for (size_t d = 0; d < x.size(); ++d) {
    if (static_cast<int>(d) != *axis && indices.type.dims[d] > x[d]) {
      return OpError(op, absl::StrCat("input 'indices' has shape ", ToString(indices.type.dims),
                                      ", expected at most ", x[d], " in dimension ", d,
                                      " because input 'x' has shape ", ToString(x)));
    }
  }
  return absl::OkStatus();
}

SplitRule SplitElementIndices(const NodeTypes& types, bool split_axis) {
  const Dims &x = types.inputs[0].dims, &indices = types.inputs[1].dims;
  const int64_t given = types.attributes.Int("axis");
  const size_t axis = given < 0 ? given + x.size() : given;
  SplitRule rule;
  std::vector<int> x_axes(x.size(), kNotSplit), index_axes(x.size(), kNotSplit);
  for (size_t d = 0; d < x.size(); ++d) {
    if (d == axis ? !split_axis : x[d] != indices[d]) continue;
    index_axes[d] = static_cast<int>(rule.axes.size());
    if (d != axis) x_axes[d] = index_axes[d];
    rule.axes.push_back({d == 0 ? "sample" : absl::StrCat("dim", d),
                         d == 0 ? AxisKind::kSample : AxisKind::kAttribute, indices[d]});
  }
  rule.inputs = {x_axes, index_axes};
  return rule;
}

absl::Status ExpectNdIndices(absl::string_view op, const NodeTypes& types, int64_t batch_dims) {
  const InputRef x{op, "x", types.inputs[0]}, indices{op, "indices", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectInteger(indices));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(indices, 1));
  const int64_t x_rank = static_cast<int64_t>(x.type.dims.size());
  const int64_t index_rank = static_cast<int64_t>(indices.type.dims.size());
  if (batch_dims < 0 || batch_dims >= std::min(x_rank + 1, index_rank)) {
    return AttributeError(op, "batch_dims", absl::StrCat(batch_dims),
                          absl::StrCat("a value from 0 to ", std::min(x_rank, index_rank - 1)));
  }
  for (int64_t d = 0; d < batch_dims; ++d) {
    if (x.type.dims[d] == indices.type.dims[d]) continue;
    return OpError(op, absl::StrCat("input 'indices' has shape ", ToString(indices.type.dims),
                                    ", expected ", x.type.dims[d], " in dimension ", d,
                                    " because input 'x' has shape ", ToString(x.type.dims)));
  }
  if (indices.type.dims.back() > x_rank - batch_dims) {
    return OpError(op, absl::StrCat("input 'indices' has shape ", ToString(indices.type.dims),
                                    ", expected at most ", x_rank - batch_dims,
                                    " in the last dimension because input 'x' has shape ",
                                    ToString(x.type.dims)));
  }
  return absl::OkStatus();
}

AttributeSpec ReductionAttribute() {
  return {.name = "reduction",
          .kind = AttributeKind::kString,
          .default_value = "none",
          .doc =
              "'none' (of several updates of one element the last one stays), 'add', "
              "'multiply', 'maximum' or 'minimum'; gradient for 'none' and 'add'"};
}

absl::Status ExpectReduction(const InputRef& x, const Attributes& attributes) {
  const std::string reduction = attributes.String("reduction");
  if (reduction == "none") return absl::OkStatus();
  for (const char* known : {"add", "multiply", "maximum", "minimum"}) {
    if (reduction != known) continue;
    return ExpectDType(x, {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64});
  }
  return AttributeError(x.op, "reduction", absl::StrCat("'", reduction, "'"),
                        "'none', 'add', 'multiply', 'maximum' or 'minimum'");
}

std::string RefuseScatterGradient(const Attributes& attributes) {
  const std::string reduction = attributes.String("reduction");
  if (reduction == "none" || reduction == "add") return "";
  return absl::StrCat("reduction '", reduction, "' has none; 'none' and 'add' have one");
}

}  // namespace espalier
