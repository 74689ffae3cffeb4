#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferEmbeddingBag(const NodeTypes& types) {
  const InputRef ids{"embedding_bag", "ids", types.inputs[0]};
  const InputRef weight{"embedding_bag", "weight", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(ids, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(weight));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(weight, 2));
  const std::string mode = types.attributes.String("mode");
  if (mode != "sum" && mode != "average") {
    return AttributeError("embedding_bag", "mode", absl::StrCat("'", mode, "'"),
                          "'sum' or 'average'");
  }
  TensorType y{weight.type.dtype, ids.type.dims};
  y.dims.back() = weight.type.dims[1];
  return std::vector<TensorType>{y};
}

SplitRule SplitEmbeddingBag(const NodeTypes& types) {
  const Dims& ids = types.inputs[0].dims;
  const Dims& weight = types.inputs[1].dims;
  SplitRule rule;
  std::vector<int> ids_map = AddLeadingAxes(ids, ids.size() - 1, &rule), y_map = ids_map;
  const int vocabulary = static_cast<int>(rule.axes.size()), out = vocabulary + 1;
  // A shard of the rows skips ids of other shards: the shards' outputs add up.
  rule.axes.push_back({"vocabulary", AxisKind::kReduction, weight[0]});
  rule.axes.push_back({"out", AxisKind::kParameter, weight[1]});
  ids_map.push_back(kNotSplit);
  y_map.push_back(out);
  rule.inputs = {ids_map, {vocabulary, out}};
  rule.outputs = {y_map};
  return rule;
}

}  // namespace

void RegisterEmbeddingBag(OpRegistry& registry) {
  OpDef def;
  def.name = "embedding_bag";
  def.doc =
      "ids[..., L] (i32, i64), weight[V, E] -> sum or average of the rows that each bag of L ids "
      "names [..., E]; ids equal to padding_index are left out, an empty bag is 0";
  def.inputs = {{"ids"}, {"weight"}};
  def.types = {DType::kI32, DType::kI64};
  def.attributes = {
      {"mode", AttributeKind::kString, std::string("sum"), false, "'sum' or 'average'"},
      {"padding_index", AttributeKind::kInt, int64_t{-1}, false, "an id to leave out; -1: none"}};
  def.infer = InferEmbeddingBag;
  def.split = SplitEmbeddingBag;
  def.index_ranges = [](const NodeTypes& types) {
    return std::vector<IndexRange>{{.input = 0, .low = 0, .high = types.inputs[1].dims[0] - 1}};
  };
  def.cost = [](const NodeTypes& types) {  // reads only the rows that are looked up
    const double rows = static_cast<double>(types.inputs[0].num_elements()) *
                        static_cast<double>(types.inputs[1].dims[1]);
    return Cost{rows, 4 * rows + static_cast<double>(types.outputs[0].bytes())};
  };
  def.gradient = Gradient{.needs_inputs = {0}, .needs_outputs = {}, .differentiable = {1}};
  registry.Add(std::move(def));
}

}  // namespace espalier
