// Resizing of one dimension as a sparse matrix: the elements of x that each element of y reads, and
// their weights. Uses the formulas of ONNX's Resize. Shared by the backends; standard library only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/kernel/attributes.h"
#include "ops/tensor/shape.h"

namespace espalier {

// y[i] = fill[i] + sum of weight[t] * x[index[t]] for t in [begin[i], begin[i + 1]).
struct ResizeTaps {
  std::vector<int64_t> begin = {0};
  std::vector<int64_t> index;
  std::vector<float> weight;
  std::vector<float> fill;

  int64_t size() const { return static_cast<int64_t>(begin.size()) - 1; }
};

struct ResizeAxis {
  int dim;
  double scale;
  double roi_start, roi_end;
};

namespace resize_internal {

// Returns the coordinate in x of element i of y.
inline double SourceOf(const std::string& coordinates, const ResizeAxis& axis, int64_t in,
                       int64_t out, int64_t i) {
  const double size = static_cast<double>(in), exact = axis.scale * size;
  const double at = static_cast<double>(i);
  if (coordinates == "asymmetric") return at / axis.scale;
  if (coordinates == "align_corners") return exact == 1 ? 0 : at * (size - 1) / (exact - 1);
  if (coordinates == "tf_crop_and_resize") {
    const double width = axis.roi_end - axis.roi_start;
    const double inside =
        exact == 1 ? width * (size - 1) / 2 : at * width * (size - 1) / (exact - 1);
    return inside + axis.roi_start * (size - 1);
  }
  if (coordinates == "tf_half_pixel_for_nn") return (at + 0.5) / axis.scale;
  if (coordinates == "pytorch_half_pixel" && exact == 1) return -0.5;
  const double half = (at + 0.5) / axis.scale - 0.5;
  if (coordinates != "half_pixel_symmetric") return half;
  return size / 2 * (1 - static_cast<double>(out) / exact) + half;
}

inline double Cubic(double x, double a) {
  x = std::fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

}  // namespace resize_internal

// Returns the dimensions that resize changes, for inputs of shape x and outputs of shape y. List
// attributes refer to the last dimensions.
inline std::vector<ResizeAxis> ResizeAxes(const Attributes& a, const Dims& x, const Dims& y) {
  const std::vector<double> scales = a.Floats("scales"), roi = a.Floats("roi");
  const bool crops = a.String("coordinates") == "tf_crop_and_resize";
  const size_t given = std::max(scales.size(), a.Ints("size").size());
  std::vector<ResizeAxis> axes;
  for (size_t i = 0; i < given; ++i) {
    const size_t d = x.size() - given + i;
    ResizeAxis axis{static_cast<int>(d), 1, 0, 1};
    if (!scales.empty()) {
      axis.scale = scales[i];
    } else if (x[d] > 0) {
      axis.scale = static_cast<double>(y[d]) / static_cast<double>(x[d]);
    }
    if (crops) {
      axis.roi_start = roi[i];
      axis.roi_end = roi[given + i];
    }
    const bool whole = axis.roi_start == 0 && axis.roi_end == 1;
    if (x[d] != y[d] || axis.scale != 1 || !whole) axes.push_back(axis);
  }
  return axes;
}

inline ResizeTaps MakeResizeTaps(const Attributes& a, const ResizeAxis& axis, int64_t in,
                                 int64_t out) {
  using resize_internal::Cubic;
  const std::string mode = a.String("mode"), coordinates = a.String("coordinates"),
                    nearest = a.String("nearest_mode");
  const bool exclude = a.Bool("exclude_outside");
  const double cubic_a = a.Float("cubic_a");
  const float extrapolation = static_cast<float>(a.Float("extrapolation"));
  const double shrink = a.Bool("antialias") ? std::min(axis.scale, 1.0) : 1.0;
  ResizeTaps taps;
  for (int64_t i = 0; i < out; ++i) {
    const double source = resize_internal::SourceOf(coordinates, axis, in, out, i);
    const double floor = std::floor(source);
    const int64_t base = static_cast<int64_t>(floor);
    const double ratio = source - floor;
    float fill = 0;
    const auto add = [&](int64_t index, double weight) {
      taps.index.push_back(std::clamp<int64_t>(index, 0, in - 1));
      taps.weight.push_back(static_cast<float>(weight));
    };
    if (coordinates == "tf_crop_and_resize" &&
        (source < 0 || source > static_cast<double>(in - 1))) {
      fill = extrapolation;
    } else if (mode == "nearest") {
      const bool up = nearest == "ceil"                ? ratio > 0
                      : nearest == "floor"             ? false
                      : nearest == "round_prefer_ceil" ? ratio >= 0.5
                                                       : ratio > 0.5;
      add(base + (up ? 1 : 0), 1);
    } else {
      const bool cubic = mode == "cubic";
      const int64_t reach = static_cast<int64_t>(std::ceil((cubic ? 2 : 1) / shrink));
      std::vector<double> weights;
      double sum = 0;
      for (int64_t k = 1 - reach; k <= reach; ++k) {
        const double distance = (static_cast<double>(k) - ratio) * shrink;
        double weight = cubic ? Cubic(distance, cubic_a) : std::max(0.0, 1 - std::fabs(distance));
        if (exclude && (base + k < 0 || base + k >= in)) weight = 0;
        weights.push_back(weight);
        sum += weight;
      }
      for (int64_t k = 1 - reach; k <= reach; ++k) {
        const double weight = weights[k + reach - 1];
        if (weight != 0) add(base + k, weight / sum);
      }
    }
    taps.fill.push_back(fill);
    taps.begin.push_back(static_cast<int64_t>(taps.index.size()));
  }
  return taps;
}

// The transpose, for the gradient: y has `in` elements, each with its taps in the order of x.
inline ResizeTaps Transpose(const ResizeTaps& taps, int64_t in) {
  ResizeTaps turned;
  turned.begin.assign(in + 1, 0);
  turned.fill.assign(in, 0);
  turned.index.resize(taps.index.size());
  turned.weight.resize(taps.index.size());
  for (int64_t index : taps.index) ++turned.begin[index + 1];
  for (int64_t i = 0; i < in; ++i) turned.begin[i + 1] += turned.begin[i];
  std::vector<int64_t> next(turned.begin.begin(), turned.begin.end() - 1);
  for (int64_t i = 0; i < taps.size(); ++i) {
    for (int64_t t = taps.begin[i]; t < taps.begin[i + 1]; ++t) {
      const int64_t to = next[taps.index[t]]++;
      turned.index[to] = i;
      turned.weight[to] = taps.weight[t];
    }
  }
  return turned;
}

// A pass resizes one dimension: [outer, in, inner] to [outer, out, inner].
struct ResizePass {
  int64_t outer, in, out, inner;
  ResizeTaps taps;
};

// Passes from x to y, or for the gradient from y to x. Dimensions that shrink come first.
inline std::vector<ResizePass> ResizePasses(const Attributes& a, const Dims& x, const Dims& y,
                                            bool backward) {
  std::vector<ResizeAxis> axes = ResizeAxes(a, x, y);
  std::stable_sort(axes.begin(), axes.end(), [&](const ResizeAxis& l, const ResizeAxis& r) {
    return y[l.dim] * x[r.dim] < y[r.dim] * x[l.dim];
  });
  std::vector<ResizePass> passes;
  Dims now = x;
  for (const ResizeAxis& axis : axes) {
    const int64_t in = x[axis.dim], out = y[axis.dim];
    ResizePass pass{1, in, out, 1, MakeResizeTaps(a, axis, in, out)};
    for (int d = 0; d < axis.dim; ++d) pass.outer *= now[d];
    for (size_t d = axis.dim + 1; d < now.size(); ++d) pass.inner *= now[d];
    now[axis.dim] = out;
    if (backward) {
      pass.taps = Transpose(pass.taps, in);
      std::swap(pass.in, pass.out);
    }
    passes.push_back(std::move(pass));
  }
  if (backward) std::reverse(passes.begin(), passes.end());
  return passes;
}

// Elements of the largest intermediate tensor.
inline int64_t LargestBetween(const std::vector<ResizePass>& passes) {
  int64_t most = 0;
  for (size_t i = 0; i + 1 < passes.size(); ++i) {
    most = std::max(most, passes[i].outer * passes[i].out * passes[i].inner);
  }
  return most;
}

}  // namespace espalier
