#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferBatchMatmul(const NodeTypes& types) {
  const InputRef a{"batch_matmul", "a", types.inputs[0]};
  const InputRef b{"batch_matmul", "b", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectRank(a, 3));
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(b, a));
  const Dims& dims = a.type.dims;
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(b, {dims[0], dims[2], "n"}, absl::StrCat("'a' is ", ToString(dims))));
  for (const char* name : {"a_seq_length_dim", "b_seq_length_dim"}) {
    const int64_t dim = types.attributes.Int(name);
    if (dim >= -1 && dim < 3) continue;
    return AttributeError("batch_matmul", name, std::to_string(dim), "0, 1, 2, or -1 for none");
  }
  if (types.has_input(2)) {
    const InputRef length{"batch_matmul", "length", types.inputs[2]};
    ESPALIER_RETURN_IF_ERROR(ExpectDType(length, {DType::kI32}));
    ESPALIER_RETURN_IF_ERROR(ExpectRank(length, 0));
  }
  return std::vector<TensorType>{{a.type.dtype, {dims[0], dims[1], b.type.dims[2]}}};
}

SplitRule SplitBatchMatmul(const NodeTypes& types) {
  const Dims &a = types.inputs[0].dims, &b = types.inputs[1].dims;
  SplitRule rule;
  rule.axes = {{"sample", AxisKind::kSample, a[0]},
               {"m", AxisKind::kAttribute, a[1]},
               {"n", AxisKind::kParameter, b[2]},
               {"k", AxisKind::kReduction, a[2]}};
  rule.inputs = {{0, 1, 3}, {0, 3, 2}};
  if (types.inputs.size() > 2) rule.inputs.emplace_back();
  rule.outputs = {{0, 1, 2}};
  return rule;
}

}  // namespace

void RegisterBatchMatmul(OpRegistry& registry) {
  OpDef def;
  def.name = "batch_matmul";
  def.doc =
      "a[B, m, k], b[B, k, n], length (i32 scalar)? -> a b [B, m, n], where elements of a and b at "
      "length or beyond along the named dimensions count as 0";
  def.inputs = {{"a"}, {"b"}, {"length", /*optional=*/true}};
  def.precision = Precision::kNarrow;
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {
      {"a_seq_length_dim", AttributeKind::kInt, int64_t{-1}, false, "of a; -1: none"},
      {"b_seq_length_dim", AttributeKind::kInt, int64_t{-1}, false, "of b; -1: none"}};
  def.infer = InferBatchMatmul;
  def.split = SplitBatchMatmul;
  def.cost = [](const NodeTypes& types) {
    return Cost{2.0 * static_cast<double>(types.outputs[0].num_elements()) *
                    static_cast<double>(types.inputs[0].dims[2]),
                OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1, 2}, .needs_outputs = {}, .differentiable = {0, 1}};
  registry.Add(std::move(def));
}

}  // namespace espalier
