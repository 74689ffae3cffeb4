// The matrix products of a mixture of experts, row by row: no capacity, nothing dropped, nothing
// padded. A row's result does not depend on which experts the others take, which serving needs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/experts.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

enum Input { kX, kWeight, kAssign, kGates };

absl::StatusOr<std::vector<TensorType>> Infer(const NodeTypes& types) {
  const auto input = [&](int i, const char* name) {
    return InputRef{"expert_linear", name, types.inputs[i]};
  };
  const InputRef x = input(kX, "x"), weight = input(kWeight, "weight");
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  if (x.type.dims.size() != 3) ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 2));
  const int64_t rows = x.type.dims[0], in = x.type.dims.back();
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(weight, x));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(weight, {"experts", "out", in}, absl::StrCat("'x' ends in ", in)));
  ESPALIER_RETURN_IF_ERROR(ExpectAssign(input(kAssign, "assign"), rows));
  const int64_t k = types.inputs[kAssign].dims[1], out = weight.type.dims[1];
  if (x.type.dims.size() == 3) {
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(x, {rows, k, in}, absl::StrCat("'assign' has ", k, " columns")));
  }
  if (!types.has_input(kGates)) return std::vector<TensorType>{{x.type.dtype, {rows, k, out}}};
  const InputRef gates = input(kGates, "gates");
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(gates, x));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(gates, {rows, k}, "'assign' has this shape"));
  return std::vector<TensorType>{{x.type.dtype, {rows, out}}};
}

SplitRule Split(const NodeTypes& types) {
  constexpr int kSample = 0, kOut = 1;
  SplitRule rule;
  rule.axes = {{"sample", AxisKind::kSample, types.inputs[kX].dims[0]},
               {"out", AxisKind::kParameter, types.inputs[kWeight].dims[1]}};
  std::vector<int> x(types.inputs[kX].dims.size(), kNotSplit);
  x[0] = kSample;
  rule.inputs = {x, {kNotSplit, kOut, kNotSplit}, {kSample, kNotSplit}};
  if (types.inputs.size() > kGates) {
    rule.inputs.push_back(types.has_input(kGates) ? std::vector<int>{kSample, kNotSplit}
                                                  : std::vector<int>{});
  }
  rule.outputs = {types.has_input(kGates) ? std::vector<int>{kSample, kOut}
                                          : std::vector<int>{kSample, kNotSplit, kOut}};
  return rule;
}

}  // namespace

void RegisterExpertLinear(OpRegistry& registry) {
  OpDef def;
  def.name = "expert_linear";
  def.doc =
      "x[T, in] or [T, k, in], weight[n, out, in], assign[T, k] (i32), gates[T, k]? -> y[T, k, "
      "out]: row t, j of y is weight[assign[t, j]] times row t (or t, j) of x; with gates [T, "
      "out]: the sum over j of gates[t, j] times that";
  def.inputs = {
      {"x"}, {"weight"}, {.name = "assign", .own_type = true}, {"gates", /*optional=*/true}};
  def.precision = Precision::kNarrow;
  def.infer = Infer;
  def.split = Split;
  def.cost = [](const NodeTypes& types) {
    const double choices = static_cast<double>(types.inputs[kAssign].num_elements());
    const Dims& weight = types.inputs[kWeight].dims;
    const double matrix = static_cast<double>(weight[1]) * static_cast<double>(weight[2]);
    // Of the experts only those that are chosen are read.
    const double read = std::min(static_cast<double>(weight[0]), choices) * matrix *
                        static_cast<double>(SizeOf(types.inputs[kWeight].dtype));
    return Cost{2 * choices * matrix, read + static_cast<double>(types.inputs[kX].bytes()) +
                                          static_cast<double>(types.outputs[0].bytes())};
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
