#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/kernel/resize_taps.h"
#include "ops/operators/expect.h"
#include "ops/operators/unsplit_axes.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::Status ExpectOneOf(const Attributes& a, const char* attribute,
                         const std::vector<std::string>& allowed) {
  const std::string found = a.String(attribute);
  std::string all;
  for (const std::string& name : allowed) {
    if (found == name) return absl::OkStatus();
    absl::StrAppend(&all, all.empty() ? "" : ", ", name);
  }
  return AttributeError("resize", attribute, absl::StrCat("'", found, "'"), all);
}

absl::Status ExpectLength(const char* attribute, size_t found, size_t expected) {
  if (found == 0 || found == expected) return absl::OkStatus();
  return AttributeError("resize", attribute, absl::StrCat("a list of ", found),
                        absl::StrCat(expected, " numbers, or none"));
}

absl::StatusOr<std::vector<TensorType>> InferResize(const NodeTypes& types) {
  const Attributes& a = types.attributes;
  const TensorType& x = types.inputs[0];
  const size_t rank = x.dims.size();
  const std::vector<int64_t> size = a.Ints("size");
  const std::vector<double> scales = a.Floats("scales"), roi = a.Floats("roi");
  ESPALIER_RETURN_IF_ERROR(ExpectOneOf(a, "mode", {"nearest", "linear", "cubic"}));
  ESPALIER_RETURN_IF_ERROR(
      ExpectOneOf(a, "coordinates",
                  {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                   "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"}));
  ESPALIER_RETURN_IF_ERROR(
      ExpectOneOf(a, "nearest_mode", {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}));
  const size_t given = std::max(size.size(), scales.size());
  if (given > rank) {
    return OpError("resize", absl::StrCat("has sizes or scales of ", given,
                                          " dimensions, but 'x' is ", ToString(x.dims)));
  }
  ESPALIER_RETURN_IF_ERROR(ExpectLength("size", size.size(), given));
  ESPALIER_RETURN_IF_ERROR(ExpectLength("scales", scales.size(), given));
  ESPALIER_RETURN_IF_ERROR(ExpectLength("roi", roi.size(), 2 * given));
  if (given == 0 && rank > 0) return OpError("resize", "needs attribute 'size' or 'scales'");
  for (double value : scales) {
    if (value > 0 && value < 1e9) continue;
    return AttributeError("resize", "scales", absl::StrCat(value), "numbers between 0 and 1e9");
  }
  for (double value : roi) {
    if (std::fabs(value) < 1e9) continue;
    return AttributeError("resize", "roi", absl::StrCat(value), "numbers below 1e9");
  }
  if (a.String("coordinates") == "tf_crop_and_resize" && roi.empty()) {
    return OpError("resize", "tf_crop_and_resize needs attribute 'roi'");
  }
  TensorType y = x;
  for (size_t i = 0; i < given; ++i) {
    const size_t d = rank - given + i;
    if (!size.empty()) {
      if (size[i] < 0) {
        return AttributeError("resize", "size", ToString(size), "sizes, 0 for that of x");
      }
      if (size[i] > 0) y.dims[d] = size[i];
    } else {
      const double exact = std::floor(static_cast<double>(x.dims[d]) * scales[i]);
      if (exact > 1e13) return AttributeError("resize", "scales", "too large", "smaller ones");
      y.dims[d] = static_cast<int64_t>(exact);
    }
    if ((x.dims[d] == 0) != (y.dims[d] == 0)) {
      return OpError("resize", absl::StrCat("dimension ", d, " of 'x', ", x.dims[d],
                                            ", cannot be resized to ", y.dims[d]));
    }
  }
  // Each element of y reads about 4 / scale elements of x.
  for (const ResizeAxis& axis : ResizeAxes(a, x.dims, y.dims)) {
    const double taps = static_cast<double>(y.dims[axis.dim]) * 4 / std::min(axis.scale, 1.0);
    if (a.Bool("antialias") && taps > 4e9) {
      return AttributeError("resize", "scales", absl::StrCat(axis.scale),
                            absl::StrCat("a scale that fits ", y.dims[axis.dim], " elements"));
    }
  }
  return std::vector<TensorType>{y};
}

}  // namespace

void RegisterResize(OpRegistry& registry) {
  OpDef def;
  def.name = "resize";
  def.doc =
      "x -> x with its dimensions resized to `size`, or to floor(scales * dimension): ONNX's "
      "Resize";
  def.inputs = {{"x"}};
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {
      {"size", AttributeKind::kInts, std::vector<int64_t>{}, false,
       "of the last dimensions, 0 for that of x; none: from scales"},
      {"scales", AttributeKind::kFloats, std::vector<double>{}, false,
       "of the last dimensions; none: size / dimension of x"},
      {"mode", AttributeKind::kString, std::string("nearest"), false, "nearest, linear or cubic"},
      {"coordinates", AttributeKind::kString, std::string("half_pixel"), false,
       "half_pixel, half_pixel_symmetric, pytorch_half_pixel, align_corners, asymmetric, "
       "tf_half_pixel_for_nn or tf_crop_and_resize"},
      {"nearest_mode", AttributeKind::kString, std::string("round_prefer_floor"), false,
       "round_prefer_floor, round_prefer_ceil, floor or ceil"},
      {"cubic_a", AttributeKind::kFloat, -0.75, false, "cubic: the kernel's coefficient"},
      {"exclude_outside", AttributeKind::kBool, false, false, "weights outside x count as 0"},
      {"antialias", AttributeKind::kBool, false, false, "linear, cubic: wider where y is smaller"},
      {"roi", AttributeKind::kFloats, std::vector<double>{}, false,
       "tf_crop_and_resize: starts, then ends, as fractions of x"},
      {"extrapolation", AttributeKind::kFloat, 0.0, false,
       "tf_crop_and_resize: what lies outside x"}};
  def.infer = InferResize;
  // Unchanged dimensions can be split.
  def.split = [](const NodeTypes& types) {
    std::vector<bool> whole(types.inputs[0].dims.size());
    for (const ResizeAxis& axis :
         ResizeAxes(types.attributes, types.inputs[0].dims, types.outputs[0].dims)) {
      whole[axis.dim] = true;
    }
    return SplitAllBut(whole, types);
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{16.0 * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {}, .needs_outputs = {}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
