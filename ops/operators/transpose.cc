#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferTranspose(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  const std::vector<int64_t> perm = types.attributes.Ints("perm");
  const int64_t rank = static_cast<int64_t>(x.dims.size());
  std::vector<bool> seen(rank, false);
  bool good = static_cast<int64_t>(perm.size()) == rank;
  for (int64_t p : perm) {
    good = good && p >= 0 && p < rank && !seen[p];
    if (good) seen[p] = true;
  }
  if (!good) {
    return AttributeError("transpose", "perm", ToString(Dims(perm)),
                          absl::StrCat("each of 0 to ", rank - 1, " once because the input has ",
                                       rank, " dimensions"));
  }
  Dims dims;
  for (int64_t p : perm) dims.push_back(x.dims[p]);
  return std::vector<TensorType>{{x.dtype, dims}};
}

SplitRule SplitTranspose(const NodeTypes& types) {
  SplitRule rule;
  const Dims& dims = types.inputs[0].dims;
  const std::vector<int> axes = AddLeadingAxes(dims, dims.size(), &rule);
  rule.inputs = {axes};
  rule.outputs.emplace_back();
  for (int64_t p : types.attributes.Ints("perm")) rule.outputs[0].push_back(axes[p]);
  return rule;
}

}  // namespace

void RegisterTranspose(OpRegistry& registry) {
  OpDef def;
  def.name = "transpose";
  def.doc = "dimension d of y is dimension perm[d] of x";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "perm",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "a permutation of the dimensions"}};
  def.types = ElementTypes("FISB");
  def.infer = InferTranspose;
  def.split = SplitTranspose;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
