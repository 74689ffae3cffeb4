#include <utility>

#include "ops/operators/experts.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferGroupBy(const NodeTypes& types) {
  const InputRef x{"group_by", "x", types.inputs[0]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 2));
  const InputRef assign{"group_by", "assign", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectAssign(assign, x.type.dims[0]));
  absl::StatusOr<int64_t> capacity =
      ExpertCapacity("group_by", types.attributes, x.type.dims[0], assign.type.dims[1]);
  if (!capacity.ok()) return capacity.status();
  const size_t n = static_cast<size_t>(types.attributes.Int("n"));
  return std::vector<TensorType>(n, {x.type.dtype, {*capacity, x.type.dims[1]}});
}

// The shards of a split batch fill different rows of the outputs: partial sums.
SplitRule SplitGroupBy(const NodeTypes& types) {
  SplitRule rule;
  const std::vector<int> x = AddLeadingAxes(types.inputs[0].dims, 2, &rule);
  rule.inputs = {x, {kNotSplit, kNotSplit}};
  rule.outputs.assign(types.outputs.size(), {kNotSplit, x[1]});
  return rule;
}

}  // namespace

void RegisterGroupBy(OpRegistry& registry) {
  OpDef def;
  def.name = "group_by";
  def.doc =
      "x[N, E], assign[N, k] -> n outputs [capacity, E]: the rows of x by the expert that they are "
      "assigned to, in order, then zeros; capacity = ceil(alpha * k * N / n), more rows are "
      "dropped";
  def.inputs = {{"x"}, {"assign"}};
  def.num_outputs = -1;
  def.attributes = ExpertAttributes();
  def.infer = InferGroupBy;
  def.split = SplitGroupBy;
  def.gradient = Gradient{.needs_inputs = {1}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
