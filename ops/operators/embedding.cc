#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferEmbedding(const NodeTypes& types) {
  const InputRef ids{"embedding", "ids", types.inputs[0]};
  const InputRef weight{"embedding", "weight", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectInteger(ids));
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(weight));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(weight, 2));
  TensorType y{weight.type.dtype, ids.type.dims};
  y.dims.push_back(weight.type.dims[1]);
  return std::vector<TensorType>{y};
}

SplitRule SplitEmbedding(const NodeTypes& types) {
  const Dims& ids = types.inputs[0].dims;
  const Dims& weight = types.inputs[1].dims;
  SplitRule rule;
  const std::vector<int> ids_map = AddLeadingAxes(ids, ids.size(), &rule);
  const int vocabulary = static_cast<int>(rule.axes.size()), out = vocabulary + 1;
  // A shard of the rows gives zeros for ids of other shards: the shards' outputs add up.
  rule.axes.push_back({"vocabulary", AxisKind::kReduction, weight[0]});
  rule.axes.push_back({"out", AxisKind::kParameter, weight[1]});
  rule.inputs = {ids_map, {vocabulary, out}};
  std::vector<int> y_map = ids_map;
  y_map.push_back(out);
  rule.outputs = {y_map};
  return rule;
}

}  // namespace

void RegisterEmbedding(OpRegistry& registry) {
  OpDef def;
  def.name = "embedding";
  def.doc = "ids[...] (i32, i64), weight[V, E] -> row ids[...] of weight [..., E]";
  def.inputs = {{"ids"}, {"weight"}};
  def.infer = InferEmbedding;
  def.split = SplitEmbedding;
  def.index_ranges = [](const NodeTypes& types) {
    return std::vector<IndexRange>{{.input = 0, .low = 0, .high = types.inputs[1].dims[0] - 1}};
  };
  def.cost = [](const NodeTypes& types) {  // reads only the rows that are looked up
    const double y = static_cast<double>(types.outputs[0].bytes());
    return Cost{0, 2 * y + static_cast<double>(types.inputs[0].bytes())};
  };
  def.gradient = Gradient{.needs_inputs = {0},
                          .needs_outputs = {},
                          .differentiable = {1},
                          .cost = [](const NodeTypes& types) {
                            const double y = static_cast<double>(types.outputs[0].bytes());
                            const double weight = static_cast<double>(types.inputs[1].bytes());
                            return Cost{y / 4, 3 * y + weight};
                          }};
  registry.Add(std::move(def));
}

}  // namespace espalier
