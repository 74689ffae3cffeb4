#include "ops/operators/experts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {

std::vector<AttributeSpec> ExpertAttributes() {
  return {{"n", AttributeKind::kInt, std::nullopt, true, "experts"},
          {"alpha", AttributeKind::kFloat, 1.0, false,
           "capacity of an expert, relative to an even share of the choices"}};
}

absl::Status ExpectAssign(const InputRef& assign, int64_t samples) {
  ESPALIER_RETURN_IF_ERROR(ExpectDType(assign, {DType::kI32}));
  return ExpectShape(assign, {samples, "k"}, absl::StrCat("there are ", samples, " samples"));
}

absl::StatusOr<int64_t> ExpertCapacity(absl::string_view op, const Attributes& attributes,
                                       int64_t samples, int64_t k) {
  const int64_t n = attributes.Int("n");
  const double alpha = attributes.Float("alpha");
  ESPALIER_RETURN_IF_ERROR(ExpectPositive(op, "n", n));
  if (!(alpha > 0) || !std::isfinite(alpha)) {
    return AttributeError(op, "alpha", absl::StrCat(alpha), "a positive number");
  }
  const double capacity = std::ceil(alpha * static_cast<double>(k) * static_cast<double>(samples) /
                                    static_cast<double>(n));
  if (capacity > 1e15) {
    return AttributeError(op, "alpha", absl::StrCat(alpha),
                          absl::StrCat("a capacity of less than 1e15 rows, not ", capacity));
  }
  return static_cast<int64_t>(capacity);
}

namespace {
enum RowsInput { kX, kWeight, kAssign, kGates };
}  // namespace

absl::StatusOr<std::vector<TensorType>> InferExpertRows(absl::string_view op,
                                                        const NodeTypes& types, int64_t out) {
  const InputRef x{op, "x", types.inputs[kX]}, assign{op, "assign", types.inputs[kAssign]};
  const int64_t rows = x.type.dims[0], in = x.type.dims.back();
  ESPALIER_RETURN_IF_ERROR(ExpectAssign(assign, rows));
  const int64_t k = assign.type.dims[1];
  if (x.type.dims.size() == 3) {
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(x, {rows, k, in}, absl::StrCat("'assign' has ", k, " columns")));
  }
  if (!types.has_input(kGates)) return std::vector<TensorType>{{x.type.dtype, {rows, k, out}}};
  const InputRef gates{op, "gates", types.inputs[kGates]};
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(gates, x));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(gates, {rows, k}, "'assign' has this shape"));
  return std::vector<TensorType>{{x.type.dtype, {rows, out}}};
}

SplitRule SplitExpertRows(const NodeTypes& types, int64_t parts, std::vector<int> weight) {
  constexpr int kSample = 0;
  const int out = parts > 0 ? 1 : kNotSplit;
  SplitRule rule;
  rule.axes = {{"sample", AxisKind::kSample, types.inputs[kX].dims[0]}};
  if (parts > 0) rule.axes.push_back({"out", AxisKind::kParameter, parts});
  std::vector<int> x(types.inputs[kX].dims.size(), kNotSplit);
  x[0] = kSample;
  rule.inputs = {x, std::move(weight), {kSample, kNotSplit}};
  if (types.inputs.size() > kGates) {
    rule.inputs.push_back(types.has_input(kGates) ? std::vector<int>{kSample, kNotSplit}
                                                  : std::vector<int>{});
  }
  rule.outputs = {types.has_input(kGates) ? std::vector<int>{kSample, out}
                                          : std::vector<int>{kSample, kNotSplit, out}};
  return rule;
}

Cost ExpertRowsCost(const NodeTypes& types, double expert_bytes) {
  const double choices = static_cast<double>(types.inputs[kAssign].num_elements());
  const double experts = static_cast<double>(types.inputs[kWeight].dims[0]);
  const double matrix = static_cast<double>(types.inputs[kX].dims.back()) *
                        static_cast<double>(types.outputs[0].dims.back());
  return Cost{2 * choices * matrix, std::min(experts, choices) * expert_bytes +
                                        static_cast<double>(types.inputs[kX].bytes()) +
                                        static_cast<double>(types.outputs[0].bytes())};
}

}  // namespace espalier
