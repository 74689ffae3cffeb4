// The matrix products of a mixture of experts, row by row: without capacity, dropping or padding. A
// row's result does not depend on the experts of other rows, which serving requires.
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/operators/experts.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

constexpr char kExpertLinear[] = "expert_linear";

absl::StatusOr<std::vector<TensorType>> InferExpertLinear(const NodeTypes& types) {
  const InputRef x{kExpertLinear, "x", types.inputs[0]},
      weight{kExpertLinear, "weight", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  if (x.type.dims.size() != 3) ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 2));
  const int64_t in = x.type.dims.back();
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(weight, x));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(weight, {"experts", "out", in}, absl::StrCat("'x' ends in ", in)));
  return InferExpertRows(kExpertLinear, types, weight.type.dims[1]);
}

SplitRule SplitExpertLinear(const NodeTypes& types) {
  return SplitExpertRows(types, types.inputs[1].dims[1], {kNotSplit, 1, kNotSplit});
}

}  // namespace

void RegisterExpertLinear(OpRegistry& registry) {
  OpDef def;
  def.name = kExpertLinear;
  def.doc =
      "x[T, in] or [T, k, in], weight[n, out, in], assign[T, k] (i32), gates[T, k]? -> y[T, k, "
      "out]: row t, j of y is weight[assign[t, j]] times row t (or t, j) of x; with gates [T, "
      "out]: the sum over j of gates[t, j] times that";
  def.inputs = {
      {"x"}, {"weight"}, {.name = "assign", .own_type = true}, {"gates", /*optional=*/true}};
  def.precision = Precision::kNarrow;
  def.infer = InferExpertLinear;
  def.split = SplitExpertLinear;
  def.cost = [](const NodeTypes& types) {
    const TensorType& weight = types.inputs[1];
    return ExpertRowsCost(
        types, static_cast<double>(weight.bytes()) / static_cast<double>(weight.dims[0]));
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
