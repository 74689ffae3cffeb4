// Image resampling: Resize, GridSample and related operators.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

// Resize of the dimensions `axes`, by `scales` or `sizes`; the other is empty.
struct Sizes {
  std::vector<int64_t> axes, sizes;
  std::vector<double> scales;
};

// Sizes that keep the aspect ratio.
void KeepRatio(const std::string& policy, const Dims& dims, Sizes* s) {
  double scale = 0;
  for (size_t i = 0; i < s->axes.size(); ++i) {
    const double own = static_cast<double>(s->sizes[i]) / static_cast<double>(dims[s->axes[i]]);
    const bool larger = policy == "not_larger" ? own < scale : own > scale;
    if (i == 0 || larger) scale = own;
  }
  for (size_t i = 0; i < s->axes.size(); ++i) {
    s->sizes[i] =
        static_cast<int64_t>(std::floor(scale * static_cast<double>(dims[s->axes[i]]) + 0.5));
    s->scales.push_back(scale);
  }
}

bool ReadSizes(Translator& t, ValueId x, int scales_input, int sizes_input, Sizes* s) {
  const int rank = t.RankOf(x);
  std::vector<int64_t> all;
  for (int d = 0; d < rank; ++d) all.push_back(d);
  s->axes = t.Axes(t.Ints("axes", all), rank);
  if (scales_input < 0) s->scales = t.Floats("scales");
  if (scales_input >= 0 && t.HasInput(scales_input)) s->scales = t.ConstantNumbers(scales_input);
  const bool by_size = s->scales.empty() && sizes_input >= 0 && t.HasInput(sizes_input);
  if (by_size) s->sizes = t.ConstantInts(sizes_input);
  if (!t.ok()) return false;
  if ((by_size ? s->sizes.size() : s->scales.size()) != s->axes.size()) {
    t.Fail(absl::StrCat("scales or sizes must be ", s->axes.size(), " numbers"));
    return false;
  }
  for (size_t i = 0; i < s->axes.size(); ++i) {
    if (by_size ? s->sizes[i] <= 0 : !(s->scales[i] > 0 && s->scales[i] < 1e6)) {
      t.Fail("scales and sizes must be positive");
      return false;
    }
  }
  const Dims& dims = t.DimsOf(x);
  const std::string policy = t.String("keep_aspect_ratio_policy", "stretch");
  if (by_size && policy != "stretch") KeepRatio(policy, dims, s);
  if (!by_size) {
    for (size_t i = 0; i < s->axes.size(); ++i) {
      s->sizes.push_back(t.IsSymbolicBatch(dims[s->axes[i]]) && s->scales[i] == 1
                             ? dims[s->axes[i]]
                             : static_cast<int64_t>(std::floor(
                                   static_cast<double>(dims[s->axes[i]]) * s->scales[i])));
    }
  } else if (s->scales.empty()) {
    for (size_t i = 0; i < s->axes.size(); ++i) {
      s->scales.push_back(static_cast<double>(s->sizes[i]) / static_cast<double>(dims[s->axes[i]]));
    }
  }
  return true;
}

// The operator takes all dimensions; size 0 keeps that of x, so that it fits any batch.
void ResizeTo(Translator& t, ValueId x, const Sizes& s, Attributes attributes) {
  const Dims& dims = t.DimsOf(x);
  std::vector<int64_t> size(dims.size(), 0);
  std::vector<double> scale(dims.size(), 1);
  for (size_t i = 0; i < s.axes.size(); ++i) {
    const int64_t d = s.axes[i];
    if (s.sizes[i] != dims[d]) size[d] = s.sizes[i];
    scale[d] = s.scales[i];
  }
  attributes.Set("size", size);
  attributes.Set("scales", scale);
  t.Return(t.Emit("resize", {x}, std::move(attributes)));
}

// Input 1, expanded to all dimensions: starts, then ends.
std::vector<double> Region(Translator& t, const Sizes& s, int rank) {
  const std::vector<double> given = t.ConstantNumbers(1);
  std::vector<double> roi(2 * rank, 0);
  std::fill(roi.begin() + rank, roi.end(), 1);
  if (t.ok() && given.size() != 2 * s.axes.size()) {
    t.Fail(absl::StrCat("input 1 (roi) must be ", 2 * s.axes.size(), " numbers"));
  }
  for (size_t i = 0; t.ok() && i < s.axes.size(); ++i) {
    roi[s.axes[i]] = given[i];
    roi[rank + s.axes[i]] = given[s.axes.size() + i];
  }
  return roi;
}

void Resize(Translator& t) {
  const ValueId x = t.Required(0);
  const bool old = t.opset() < 11;  // x, scales
  Sizes s;
  if (!t.ok() || !ReadSizes(t, x, old ? 1 : 2, old ? -1 : 3, &s)) return;
  const std::string coordinates =
      t.String("coordinate_transformation_mode", old ? "asymmetric" : "half_pixel");
  Attributes attributes = {
      {"mode", t.String("mode", "nearest")},
      {"coordinates", coordinates},
      {"nearest_mode", t.String("nearest_mode", old ? "floor" : "round_prefer_floor")},
      {"cubic_a", t.Float("cubic_coeff_a", -0.75)},
      {"exclude_outside", t.Bool("exclude_outside")},
      {"antialias", t.Bool("antialias")}};
  if (coordinates == "tf_crop_and_resize") {
    attributes.Set("roi", Region(t, s, t.RankOf(x)));
    attributes.Set("extrapolation", t.Float("extrapolation_value", 0));
  }
  ResizeTo(t, x, s, std::move(attributes));
}

void Upsample(Translator& t) {
  const ValueId x = t.Required(0);
  Sizes s;
  if (!t.ok() || !ReadSizes(t, x, 1, -1, &s)) return;
  const std::string mode = t.String("mode", "nearest");
  ResizeTo(t, x, s,
           {{"mode", mode},
            {"coordinates", std::string("asymmetric")},
            {"nearest_mode", std::string("floor")}});
}

void GridSample(Translator& t) {
  const ValueId x = t.Required(0), grid = t.Required(1);
  if (!t.ok()) return;
  if (t.RankOf(x) != 4) return t.Refuse("takes x[N, C, H, W] only");
  std::string mode = t.String("mode", t.opset() < 20 ? "bilinear" : "linear");
  if (mode == "linear") mode = "bilinear";
  if (mode == "cubic") mode = "bicubic";
  t.Return(t.Emit("grid_sample", {x, grid},
                  {{"mode", mode},
                   {"padding", t.String("padding_mode", "zeros")},
                   {"align_corners", t.Bool("align_corners")}}));
}

// The grid is linear in theta: points times theta's rows.
void AffineGrid(Translator& t) {
  const ValueId theta = t.Required(0);
  const std::vector<int64_t> size = t.ConstantInts(1);
  if (!t.ok()) return;
  constexpr int64_t kMaxPoints = 1 << 24;
  const int dims = static_cast<int>(size.size()) - 2;
  if (dims != 2 && dims != 3) return t.Refuse("takes sizes [N, C, H, W] and [N, C, D, H, W]");
  int64_t points = 1;
  for (int64_t n : size) {
    if (n < 1) return t.Fail("input 1 (size) must be positive");
  }
  for (int d = 0; d < dims; ++d) {
    if (size[d + 2] > kMaxPoints / points) {
      return t.Refuse(absl::StrCat("makes more than ", kMaxPoints, " points"));
    }
    points *= size[d + 2];
  }
  if (t.DimsOf(theta) != Dims{size[0], dims, dims + 1}) {
    return t.Fail(absl::StrCat("theta has shape ", ToString(t.DimsOf(theta))));
  }
  const bool corners = t.Bool("align_corners");
  if (!t.CheckConstantBytes(t.DTypeOf(theta), points * (dims + 1))) return;
  std::vector<double> base;
  for (int64_t p = 0; p < points; ++p) {
    int64_t rest = p;
    std::vector<double> point;
    for (int d = dims - 1; d >= 0; --d) {  // the last dimension is the first coordinate
      const double n = static_cast<double>(size[d + 2]),
                   i = static_cast<double>(rest % size[d + 2]);
      rest /= size[d + 2];
      point.push_back(corners ? (n == 1 ? -1 : -1 + 2 * i / (n - 1)) : (2 * i + 1) / n - 1);
    }
    base.insert(base.end(), point.begin(), point.end());
    base.push_back(1);
  }
  const ValueId grid = t.Emit("matmul", {t.Numbers(t.DTypeOf(theta), {points, dims + 1}, base),
                                         t.Transpose(theta, {0, 2, 1})});
  Dims result = {size[0]};
  result.insert(result.end(), size.begin() + 2, size.end());
  result.push_back(dims);
  t.Return(t.Reshape(grid, result));
}

}  // namespace

void RegisterImageTranslations(TranslationTable& table) {
  table["AffineGrid"] = AffineGrid;
  table["GridSample"] = GridSample;
  table["Resize"] = Resize;
  table["Upsample"] = Upsample;
}

}  // namespace espalier::onnx_import
