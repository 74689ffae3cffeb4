#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferCumsum(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  absl::StatusOr<int> axis = NormalizeAxis("cumsum", "axis", types.attributes.Int("axis"),
                                           static_cast<int>(x.dims.size()));
  if (!axis.ok()) return axis.status();
  return std::vector<TensorType>{x};
}

}  // namespace

void RegisterCumsum(OpRegistry& registry) {
  OpDef def;
  def.name = "cumsum";
  def.doc = "y[i] = x[0] + ... + x[i] along axis";
  def.inputs = {{"x"}};
  def.precision = Precision::kF32;
  def.attributes = {{.name = "axis",
                     .kind = AttributeKind::kInt,
                     .required = true,
                     .doc = "from the end if negative"},
                    {.name = "exclusive",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "leave out x[i] itself"},
                    {.name = "reverse",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "sum from the other end"}};
  def.types = ElementTypes("FI");
  def.infer = InferCumsum;
  def.split = SplitAllButAxis;
  def.cost = [](const NodeTypes& types) {
    return Cost{static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
