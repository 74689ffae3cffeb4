#include <utility>
#include <vector>

#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferWhere(const NodeTypes& types) {
  const TensorType &a = types.inputs[1], &b = types.inputs[2];
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType({"where", "b", b}, {"where", "a", a}));
  absl::StatusOr<Dims> dims = BroadcastDims("where", a.dims, b.dims);
  if (!dims.ok()) return dims.status();
  dims = BroadcastDims("where", types.inputs[0].dims, *dims);
  if (!dims.ok()) return dims.status();
  return std::vector<TensorType>{{a.dtype, *std::move(dims)}};
}

}  // namespace

void RegisterWhere(OpRegistry& registry) {
  OpDef def;
  def.name = "where";
  def.doc = "y = a where condition, else b; all with numpy's broadcasting";
  def.inputs = {{"condition"}, {"a"}, {"b"}};
  def.types = {DType::kBool};
  def.onnx = OnnxForm{"Where", {}};
  def.infer = InferWhere;
  def.split = SplitBroadcast;
  def.cost = CostPerElement(0);
  def.gradient = Gradient{.needs_inputs = {0}, .differentiable = {1, 2}};
  registry.Add(std::move(def));
}

}  // namespace espalier
