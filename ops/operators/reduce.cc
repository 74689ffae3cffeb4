#include "ops/operators/reduce.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"

namespace espalier {
namespace {

std::vector<bool> Reduced(const NodeTypes& types) {
  const size_t rank = types.inputs[0].dims.size();
  const std::vector<int64_t> axes = types.attributes.Ints("axes");
  std::vector<bool> reduced(rank, axes.empty());
  for (int64_t axis : axes) reduced[axis < 0 ? axis + static_cast<int64_t>(rank) : axis] = true;
  return reduced;
}

SplitRule SplitReduce(const NodeTypes& types, bool is_sum) {
  const Dims& x = types.inputs[0].dims;
  const std::vector<bool> reduced = Reduced(types);
  const bool keep = types.attributes.Bool("keepdims");
  SplitRule rule;
  rule.inputs.emplace_back();
  rule.outputs.emplace_back();
  for (size_t d = 0; d < x.size(); ++d) {
    const int axis = static_cast<int>(rule.axes.size());
    if (reduced[d] && !is_sum) {
      rule.inputs[0].push_back(kNotSplit);
      if (keep) rule.outputs[0].push_back(kNotSplit);
      continue;
    }
    if (reduced[d]) {
      rule.axes.push_back({absl::StrCat("sum", d), AxisKind::kReduction, x[d]});
    } else {
      rule.axes.push_back({d == 0 ? "sample" : absl::StrCat("dim", d),
                           d == 0 ? AxisKind::kSample : AxisKind::kAttribute, x[d]});
    }
    rule.inputs[0].push_back(axis);
    if (!reduced[d] || keep) rule.outputs[0].push_back(reduced[d] ? kNotSplit : axis);
  }
  return rule;
}

}  // namespace

int64_t ReducedCount(const NodeTypes& types) {
  const std::vector<bool> reduced = Reduced(types);
  int64_t count = 1;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (reduced[d]) count *= types.inputs[0].dims[d];
  }
  return count;
}

OpDef MakeReduction(const ReductionOp& op) {
  OpDef def;
  def.name = op.name;
  def.doc = op.doc;
  def.inputs = {{"x"}};
  def.types = op.types;
  def.precision = op.precision;
  def.attributes = {{.name = "axes",
                     .kind = AttributeKind::kInts,
                     .default_value = std::vector<int64_t>{},
                     .doc = "dimensions, from the end if negative; empty: all"},
                    {.name = "keepdims",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "keep reduced dimensions, with size 1"}};
  def.infer = [name = op.name](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const TensorType& x = types.inputs[0];
    absl::StatusOr<std::vector<bool>> marked =
        MarkAxes(name, types.attributes.Ints("axes"), x.dims.size());
    if (!marked.ok()) return marked.status();
    const std::vector<bool> reduced = Reduced(types);
    TensorType y{x.dtype, {}};
    for (size_t d = 0; d < x.dims.size(); ++d) {
      if (!reduced[d]) {
        y.dims.push_back(x.dims[d]);
      } else if (types.attributes.Bool("keepdims")) {
        y.dims.push_back(1);
      }
    }
    return std::vector<TensorType>{y};
  };
  def.split = [is_sum = op.is_sum](const NodeTypes& types) { return SplitReduce(types, is_sum); };
  def.cost = [](const NodeTypes& types) {
    return Cost{static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.differentiable = {0}};
  if (op.saves_input) def.gradient->needs_inputs = {0};
  if (op.saves_output) def.gradient->needs_outputs = {0};
  return def;
}

}  // namespace espalier
