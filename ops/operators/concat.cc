#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferConcat(const NodeTypes& types) {
  TensorType y = types.inputs[0];
  absl::StatusOr<int> axis = NormalizeAxis("concat", "axis", types.attributes.Int("axis"),
                                           static_cast<int>(y.dims.size()));
  if (!axis.ok()) return axis.status();
  const InputRef first{"concat", "x0", types.inputs[0]};
  for (size_t i = 1; i < types.inputs.size(); ++i) {
    const std::string name = absl::StrCat("x", i);
    const InputRef input{"concat", name, types.inputs[i]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(input, first));
    std::vector<ExpectedDim> expected(first.type.dims.begin(), first.type.dims.end());
    expected[*axis] = ExpectedDim("any");
    ESPALIER_RETURN_IF_ERROR(ExpectShape(
        input, expected, absl::StrCat("input 'x0' has shape ", ToString(first.type.dims))));
    y.dims[*axis] += types.inputs[i].dims[*axis];
  }
  return std::vector<TensorType>{y};
}

int64_t Axis(const NodeTypes& types) {
  const int64_t axis = types.attributes.Int("axis");
  return axis < 0 ? axis + static_cast<int64_t>(types.inputs[0].dims.size()) : axis;
}

SplitRule SplitConcat(const NodeTypes& types) {
  std::vector<bool> whole(types.inputs[0].dims.size(), false);
  whole[Axis(types)] = true;
  return SplitAllBut(whole, types);
}

// The gradient may lack inputs that need none, so it reads their sizes from an attribute; the axis
// is never split.
void CanonicalizeConcat(const NodeTypes& types, Attributes* attributes) {
  std::vector<int64_t> sizes;
  for (const TensorType& input : types.inputs) sizes.push_back(input.dims[Axis(types)]);
  attributes->Set("sizes", sizes);
}

}  // namespace

void RegisterConcat(OpRegistry& registry) {
  OpDef def;
  def.name = "concat";
  def.doc = "y = x0, x1, ... one after the other along axis";
  def.inputs = {{.name = "x", .variadic = true}};
  def.attributes = {{.name = "axis",
                     .kind = AttributeKind::kInt,
                     .required = true,
                     .doc = "from the end if negative"},
                    {.name = "sizes",
                     .kind = AttributeKind::kInts,
                     .doc = "of the inputs along axis; filled in"}};
  def.types = ElementTypes("FISB");
  def.infer = InferConcat;
  def.canonicalize = CanonicalizeConcat;
  def.split = SplitConcat;
  def.gradient = Gradient{.differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
