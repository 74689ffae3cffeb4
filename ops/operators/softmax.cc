#include <string>
#include <utility>

#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

// Each line along `axis` is independent.
OpDef MakeLineOperator(const std::string& name, const std::string& doc) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"x"}};
  def.precision = Precision::kF32;
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {{"axis", AttributeKind::kInt, int64_t{-1}, false, "negative: from the end"}};
  def.infer = [name](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const TensorType& x = types.inputs[0];
    absl::StatusOr<int> axis =
        NormalizeAxis(name, "axis", types.attributes.Int("axis"), static_cast<int>(x.dims.size()));
    if (!axis.ok()) return axis.status();
    return std::vector<TensorType>{x};
  };
  def.split = [](const NodeTypes& types) {
    const size_t rank = types.inputs[0].dims.size();
    const int64_t axis = types.attributes.Int("axis");
    std::vector<bool> whole(rank);
    whole[axis < 0 ? axis + rank : axis] = true;
    return SplitAllBut(whole, types);
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{10.0 * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {}, .needs_outputs = {0}, .differentiable = {0}};
  return def;
}

}  // namespace

void RegisterSoftmax(OpRegistry& registry) {
  registry.Add(MakeLineOperator("softmax", "x -> exp(x) / sum(exp(x)) along axis"));
  registry.Add(MakeLineOperator("log_softmax", "x -> x - log(sum(exp(x))) along axis"));
}

}  // namespace espalier
