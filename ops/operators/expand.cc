#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferExpand(const NodeTypes& types) {
  const TensorType& x = types.inputs[0];
  const Dims shape = types.attributes.Ints("shape");
  ESPALIER_RETURN_IF_ERROR(ExpectInts("expand", "shape", shape, shape.size(), 0));
  absl::StatusOr<Dims> dims = BroadcastDims("expand", x.dims, shape);
  if (!dims.ok()) return dims.status();
  return std::vector<TensorType>{{x.dtype, *std::move(dims)}};
}

// A size that x has already is written as 1, which means the same and allows a split.
void CanonicalizeExpand(const NodeTypes& types, Attributes* attributes) {
  const Dims& x = types.inputs[0].dims;
  Dims shape = attributes->Ints("shape");
  for (size_t i = 1; i <= std::min(x.size(), shape.size()); ++i) {
    int64_t& size = shape[shape.size() - i];
    if (size == x[x.size() - i]) size = 1;
  }
  attributes->Set("shape", shape);
}

SplitRule SplitExpand(const NodeTypes& types) {
  const Dims &x = types.inputs[0].dims, &y = types.outputs[0].dims;
  SplitRule rule;
  std::vector<int> x_axes(x.size(), kNotSplit), y_axes(y.size(), kNotSplit);
  for (size_t d = y.size() - x.size(), i = 0; d < y.size(); ++d, ++i) {
    if (x[i] != y[d]) continue;
    x_axes[i] = y_axes[d] = static_cast<int>(rule.axes.size());
    rule.axes.push_back({d == 0 ? "sample" : absl::StrCat("dim", d),
                         d == 0 ? AxisKind::kSample : AxisKind::kAttribute, y[d]});
  }
  rule.inputs = {x_axes};
  rule.outputs = {y_axes};
  return rule;
}

}  // namespace

void RegisterExpand(OpRegistry& registry) {
  OpDef def;
  def.name = "expand";
  def.doc = "y = x broadcast together with a tensor of dimensions `shape`, as numpy does";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "shape",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "sizes; 1 leaves a dimension of x as it is"}};
  def.types = ElementTypes("FISB");
  def.infer = InferExpand;
  def.canonicalize = CanonicalizeExpand;
  def.split = SplitExpand;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
