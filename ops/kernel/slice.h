// The elements that slice and reverse select. Shared by definition and kernels. Standard library
// only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/kernel/attributes.h"
#include "ops/tensor/shape.h"

namespace espalier {

// Elements first, first + step, ... of a dimension, with numpy's meaning of start:end:step:
// negative bounds count from the end, and bounds are clamped to the dimension. With a negative step
// any end below -size reaches element 0.
struct SliceRange {
  int64_t first = 0;
  int64_t count = 0;

  SliceRange(int64_t start, int64_t end, int64_t step, int64_t size) {
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    const auto clamp = [&](int64_t i) {
      if (i < 0) return i < -size ? low : i + size;
      return std::min(i, high);
    };
    first = clamp(start);
    const int64_t length = step > 0 ? clamp(end) - first : first - clamp(end);
    // No dimension is longer than 2^46: a larger step takes one element.
    const int64_t stride =
        std::max<int64_t>(1, step > 0 ? step : -std::max(step, -(int64_t{1} << 62)));
    count = length <= 0 ? 0 : (length - 1) / stride + 1;
  }
};

// Where a selection starts in a tensor, and its strides there, in elements.
struct Window {
  int64_t start = 0;
  Dims strides;
};

// `strides` belong to the dense tensor with dimensions `dims`. REQUIRES: the selection is not
// empty.
inline Window SliceWindow(const Attributes& attributes, const Dims& dims, const Dims& strides) {
  Window window{0, strides};
  const std::vector<int64_t> axes = attributes.Ints("axes"), starts = attributes.Ints("starts"),
                             ends = attributes.Ints("ends"), steps = attributes.Ints("steps");
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = axes[i] < 0 ? axes[i] + dims.size() : axes[i];
    const int64_t size = dims[axis], step = steps.empty() ? 1 : steps[i];
    window.start += SliceRange(starts[i], ends[i], step, size).first * strides[axis];
    // A step beyond the dimension takes one element; its stride is unused but must not overflow.
    window.strides[axis] *= std::clamp(step, -size - 1, size + 1);
  }
  return window;
}

inline Window ReverseWindow(const Attributes& attributes, const Dims& dims, const Dims& strides) {
  Window window{0, strides};
  for (int64_t axis : attributes.Ints("axes")) {
    if (axis < 0) axis += static_cast<int64_t>(dims.size());
    window.start += (dims[axis] - 1) * strides[axis];
    window.strides[axis] = -strides[axis];
  }
  return window;
}

}  // namespace espalier
