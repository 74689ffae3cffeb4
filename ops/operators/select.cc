#include "ops/operators/select.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/kernel/axis_lines.h"
#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"

namespace espalier {

OpDef MakeTopK(const std::string& name, const std::string& doc, DType indices, bool values) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"x"}};
  def.num_outputs = values ? 2 : 1;
  def.attributes = {{.name = "k",
                     .kind = AttributeKind::kInt,
                     .required = true,
                     .doc = "elements to pick from each line"},
                    {.name = "axis",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{-1},
                     .doc = "along which to look, from the end if negative"},
                    {.name = "largest",
                     .kind = AttributeKind::kBool,
                     .default_value = true,
                     .doc = "the largest elements, otherwise the smallest"},
                    {.name = "sorted",
                     .kind = AttributeKind::kBool,
                     .default_value = true,
                     .doc = "whether the order matters; it is always the sorted one"}};
  def.types = ElementTypes("FI");
  def.infer = [name, indices,
               values](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    TensorType y = types.inputs[0];
    absl::StatusOr<int> axis =
        NormalizeAxis(name, "axis", types.attributes.Int("axis"), static_cast<int>(y.dims.size()));
    if (!axis.ok()) return axis.status();
    const int64_t k = types.attributes.Int("k");
    if (k < 0 || k > y.dims[*axis]) {
      return AttributeError(name, "k", absl::StrCat(k),
                            absl::StrCat("a value from 0 to ", y.dims[*axis], ", dimension ", *axis,
                                         " of input 'x' with shape ", ToString(y.dims)));
    }
    y.dims[*axis] = k;
    const TensorType places{indices, y.dims};
    return values ? std::vector<TensorType>{y, places} : std::vector<TensorType>{places};
  };
  def.split = SplitAllButAxis;
  def.cost = [](const NodeTypes& types) {
    return Cost{static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  return def;
}

OpDef MakeSort(const std::string& name, const std::string& doc, bool values) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"x"}};
  def.num_outputs = values ? 2 : 1;
  def.attributes = {{.name = "axis",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{-1},
                     .doc = "along which to sort, from the end if negative"},
                    {.name = "descending",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "the largest first, otherwise the smallest"}};
  def.types = ElementTypes("FI");
  def.infer = [name, values](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const TensorType& x = types.inputs[0];
    absl::StatusOr<int> axis =
        NormalizeAxis(name, "axis", types.attributes.Int("axis"), static_cast<int>(x.dims.size()));
    if (!axis.ok()) return axis.status();
    const TensorType places{DType::kI64, x.dims};
    return values ? std::vector<TensorType>{x, places} : std::vector<TensorType>{places};
  };
  def.split = SplitAllButAxis;
  def.cost = [](const NodeTypes& types) {
    const TensorType& x = types.inputs[0];
    const AxisLines lines(x.dims, types.attributes.Int("axis"));
    const double comparisons = std::log2(static_cast<double>(std::max<int64_t>(2, lines.length)));
    return Cost{comparisons * static_cast<double>(x.num_elements()), OperandBytes(types)};
  };
  return def;
}

OpDef MakeArgExtreme(const std::string& name, const std::string& doc) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"x"}};
  def.attributes = {{.name = "axis",
                     .kind = AttributeKind::kInt,
                     .default_value = int64_t{0},
                     .doc = "along which to look, from the end if negative"},
                    {.name = "keepdims",
                     .kind = AttributeKind::kBool,
                     .default_value = true,
                     .doc = "keep the dimension, with size 1"},
                    {.name = "select_last",
                     .kind = AttributeKind::kBool,
                     .default_value = false,
                     .doc = "of equal elements the last, otherwise the first"}};
  def.types = ElementTypes("FI");
  def.types.insert(def.types.end(), {DType::kI8, DType::kU8});
  def.infer = [name](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    TensorType y{DType::kI64, types.inputs[0].dims};
    absl::StatusOr<int> axis =
        NormalizeAxis(name, "axis", types.attributes.Int("axis"), static_cast<int>(y.dims.size()));
    if (!axis.ok()) return axis.status();
    if (y.dims[*axis] == 0) {
      return OpError(name, absl::StrCat("dimension ", *axis, " of input 'x' with shape ",
                                        ToString(y.dims), " is 0, expected at least 1"));
    }
    if (types.attributes.Bool("keepdims")) {
      y.dims[*axis] = 1;
    } else {
      y.dims.erase(y.dims.begin() + *axis);
    }
    return std::vector<TensorType>{y};
  };
  def.split = [](const NodeTypes& types) {
    SplitRule rule = SplitAllButAxis(types);
    if (!types.attributes.Bool("keepdims")) {
      const int64_t axis = types.attributes.Int("axis");
      std::vector<int>& y = rule.outputs[0];
      y.erase((axis < 0 ? y.end() : y.begin()) + axis);
    }
    return rule;
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  return def;
}

}  // namespace espalier
