#include "ops/operators/reshape.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferReshape(const NodeTypes& types) {
  const Dims shape = types.attributes.Ints("shape");
  const TensorType& x = types.inputs[0];
  Dims dims = shape;
  int inferred = -1;
  int64_t known = 1;
  bool too_large = false;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == -1 && inferred < 0) {
      inferred = static_cast<int>(d);
      continue;
    }
    if (dims[d] == 0 && d < x.dims.size()) dims[d] = x.dims[d];
    if (dims[d] < 0 || (shape[d] == 0 && d >= x.dims.size())) {
      return AttributeError("reshape", "shape", ToString(Dims(shape)),
                            "positive sizes, 0 for a dimension that the input has, and one -1");
    }
    too_large = too_large || __builtin_mul_overflow(known, dims[d], &known);
  }
  const int64_t elements = x.num_elements();
  bool fits = !too_large;
  if (fits && inferred >= 0) {
    fits = known > 0 ? elements % known == 0 : elements == 0;
    if (fits) dims[inferred] = known > 0 ? elements / known : 0;
  } else if (fits) {
    fits = known == elements;
  }
  if (!fits) {
    return OpError("reshape", absl::StrCat("attribute 'shape' is ", ToString(shape),
                                           " which does not hold the ", elements,
                                           " elements of input 'x' with shape ", ToString(x.dims)));
  }
  return std::vector<TensorType>{{x.dtype, dims}};
}

}  // namespace

SplitRule SplitRegrouped(const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  const Dims& y = types.outputs[0].dims;
  SplitRule rule;
  std::vector<int> x_axes(x.size(), kNotSplit), y_axes(y.size(), kNotSplit);
  if (NumElements(x) > 0) {
    size_t i = 0, j = 0;
    while (true) {
      while (i < x.size() && x[i] == 1) ++i;
      while (j < y.size() && y[j] == 1) ++j;
      if (i == x.size() || j == y.size()) break;
      const size_t x_first = i, y_first = j;
      int64_t x_product = x[i++], y_product = y[j++];
      while (x_product != y_product) {
        if (x_product < y_product) {
          x_product *= x[i++];
        } else {
          y_product *= y[j++];
        }
      }
      const int64_t size = std::gcd(x[x_first], y[y_first]);
      if (size == 1) continue;
      x_axes[x_first] = y_axes[y_first] = static_cast<int>(rule.axes.size());
      const bool sample = x_first == 0 && y_first == 0;
      rule.axes.push_back({sample ? "sample" : absl::StrCat("dim", x_first),
                           sample ? AxisKind::kSample : AxisKind::kAttribute, size});
    }
  }
  rule.inputs = {x_axes};
  rule.outputs = {y_axes};
  return rule;
}

void RegisterReshape(OpRegistry& registry) {
  OpDef def;
  def.name = "reshape";
  def.doc = "y = x with other dimensions, the elements in the same order";
  def.inputs = {{"x"}};
  def.attributes = {{.name = "shape",
                     .kind = AttributeKind::kInts,
                     .required = true,
                     .doc = "sizes; 0 copies the input's dimension, one -1 is inferred"}};
  def.types = ElementTypes("FISB");
  def.infer = InferReshape;
  def.split = SplitRegrouped;
  def.gradient = Gradient{.differentiable = {0}};
  def.view = true;
  registry.Add(std::move(def));
}

}  // namespace espalier
