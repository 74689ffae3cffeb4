#include "ops/operators/norm.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferNorm(const NormOp& op, const NodeTypes& types) {
  const InputRef x{op.name, "x", types.inputs[0]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 1));
  const int64_t size = x.type.dims.back();
  const size_t first = op.residual ? 2 : 1;
  if (op.residual) {
    ESPALIER_RETURN_IF_ERROR(ExpectSameType({op.name, "residual", types.inputs[1]}, x));
  }
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    if (!types.has_input(first + i)) continue;
    const InputRef input{op.name, op.parameters[i].name, types.inputs[first + i]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(input, x));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(input, {size}, absl::StrCat("'x' ends in ", size)));
  }
  if (!(types.attributes.Float("epsilon") >= 0)) {
    return AttributeError(op.name, "epsilon", std::to_string(types.attributes.Float("epsilon")),
                          "a number >= 0");
  }
  return std::vector<TensorType>(op.residual ? 2 : 1, x.type);
}

// Rows stay whole.
SplitRule SplitNorm(const NormOp& op, const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  SplitRule rule;
  std::vector<int> map = AddLeadingAxes(x, x.size() - 1, &rule);
  map.push_back(kNotSplit);
  const size_t rows = op.residual ? 2 : 1;
  for (size_t i = 0; i < types.inputs.size(); ++i) {
    rule.inputs.push_back(i < rows ? map
                                   : std::vector<int>(types.inputs[i].dims.size(), kNotSplit));
  }
  rule.outputs.assign(rows, map);
  return rule;
}

}  // namespace

OpDef MakeNorm(const NormOp& op) {
  OpDef def;
  def.name = op.name;
  def.doc = op.doc;
  def.inputs = {{"x"}};
  def.precision = Precision::kF32;
  if (op.residual) def.inputs.push_back({"residual"});
  const int first = static_cast<int>(def.inputs.size());
  def.inputs.insert(def.inputs.end(), op.parameters.begin(), op.parameters.end());
  def.num_outputs = first;
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {{"epsilon", AttributeKind::kFloat, 1e-5, false, "added below the root"}};
  def.infer = [op](const NodeTypes& types) { return InferNorm(op, types); };
  def.split = [op](const NodeTypes& types) { return SplitNorm(op, types); };
  def.cost = [](const NodeTypes& types) {
    return Cost{8.0 * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
  Gradient gradient;
  if (op.residual) {
    gradient.needs_outputs = {1};
  } else {
    gradient.needs_inputs = {0};
  }
  gradient.needs_inputs.push_back(first);
  for (int i = 0; i < static_cast<int>(def.inputs.size()); ++i)
    gradient.differentiable.push_back(i);
  def.gradient = std::move(gradient);
  return def;
}

}  // namespace espalier
