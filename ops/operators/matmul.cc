#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

struct Sizes {
  int64_t m, n, k_a, k_b;
};

Sizes SizesOf(const NodeTypes& types) {
  const Dims& a = types.inputs[0].dims;
  const Dims& b = types.inputs[1].dims;
  const bool ta = types.attributes.Bool("transpose_a"), tb = types.attributes.Bool("transpose_b");
  const int64_t a0 = a[a.size() - 2], a1 = a[a.size() - 1];
  const int64_t b0 = b[b.size() - 2], b1 = b[b.size() - 1];
  return {ta ? a1 : a0, tb ? b0 : b1, ta ? a0 : a1, tb ? b1 : b0};
}

Dims BatchOf(const Dims& dims) { return Dims(dims.begin(), dims.end() - 2); }

absl::StatusOr<std::vector<TensorType>> InferMatmul(const NodeTypes& types) {
  const InputRef a{"matmul", "a", types.inputs[0]};
  const InputRef b{"matmul", "b", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(a));
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(b, a));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(a, 2));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(b, 2));
  const Sizes sizes = SizesOf(types);
  if (sizes.k_a != sizes.k_b) {
    return OpError("matmul",
                   absl::StrCat("input 'a' has shape ", ToString(a.type.dims), " and sums over ",
                                sizes.k_a, ", input 'b' has shape ", ToString(b.type.dims),
                                " and sums over ", sizes.k_b, "; expected equal sizes",
                                " (attributes transpose_a and transpose_b exchange the last two)"));
  }
  absl::StatusOr<Dims> batch = BroadcastDims("matmul", BatchOf(a.type.dims), BatchOf(b.type.dims));
  if (!batch.ok()) return batch.status();
  TensorType y{a.type.dtype, *batch};
  y.dims.push_back(sizes.m);
  y.dims.push_back(sizes.n);
  return std::vector<TensorType>{y};
}

SplitRule SplitMatmul(const NodeTypes& types) {
  const Dims& y = types.outputs[0].dims;
  const Sizes sizes = SizesOf(types);
  SplitRule rule;
  const size_t batch = y.size() - 2;
  std::vector<int> y_map = AddLeadingAxes(y, batch, &rule);
  const int m = static_cast<int>(rule.axes.size()), n = m + 1, k = m + 2;
  rule.axes.push_back({"m", batch == 0 ? AxisKind::kSample : AxisKind::kAttribute, sizes.m});
  rule.axes.push_back({"n", AxisKind::kParameter, sizes.n});
  rule.axes.push_back({"k", AxisKind::kReduction, sizes.k_a});
  // Batch dimensions are aligned from the right; a broadcast one is needed whole on every shard.
  const auto map_of = [&](const Dims& dims, int first, int second) {
    std::vector<int> map;
    const size_t own = dims.size() - 2;
    for (size_t d = 0; d < own; ++d) {
      const size_t in_y = batch - own + d;
      map.push_back(dims[d] == y[in_y] ? y_map[in_y] : kNotSplit);
    }
    map.push_back(first);
    map.push_back(second);
    return map;
  };
  const bool ta = types.attributes.Bool("transpose_a"), tb = types.attributes.Bool("transpose_b");
  rule.inputs = {map_of(types.inputs[0].dims, ta ? k : m, ta ? m : k),
                 map_of(types.inputs[1].dims, tb ? n : k, tb ? k : n)};
  y_map.push_back(m);
  y_map.push_back(n);
  rule.outputs = {y_map};
  return rule;
}

}  // namespace

void RegisterMatmul(OpRegistry& registry) {
  OpDef def;
  def.name = "matmul";
  def.doc = "a[..., m, k], b[..., k, n] -> a b [..., m, n]; batch dimensions broadcast";
  def.inputs = {{"a"}, {"b"}};
  def.precision = Precision::kNarrow;
  def.attributes = {
      {"transpose_a", AttributeKind::kBool, false, false, "a is given as [..., k, m]"},
      {"transpose_b", AttributeKind::kBool, false, false, "b is given as [..., n, k]"}};
  def.infer = InferMatmul;
  def.split = SplitMatmul;
  def.cost = [](const NodeTypes& types) {
    return Cost{2.0 * static_cast<double>(types.outputs[0].num_elements()) *
                    static_cast<double>(SizesOf(types).k_a),
                OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .needs_outputs = {}, .differentiable = {0, 1}};
  registry.Add(std::move(def));
}

}  // namespace espalier
