// Pooling of NCHW planes over windows given per row and column of the result, with PyTorch's rules
// for ties and borders.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/kernel/kernel.h"

namespace espalier {

// The positions first, first + step, ... < end of a window along one dimension.
struct Span {
  int64_t first, end, step;
  int64_t cells;  // the average's divisor
};

struct Windows {
  int64_t height, width;  // of the image
  std::vector<Span> rows, columns;

  // Elements of the windows of one plane.
  int64_t work() const;
};

// Windows of pool2d's attributes: kernel, strides, pads, dilations, count_include_pad. `y`:
// dimensions of the result.
Windows SlidingWindows(const Attributes& attributes, const Dims& x, const Dims& y);

// Windows of PyTorch's adaptive pooling.
Windows AdaptiveWindows(const Dims& x, const Dims& y);

// Returns the index in the plane of the first maximum of window (i, j) in row-major order; a NaN
// wins. Returns -1 for a window that contains only padding.
int64_t ArgMax(const Windows& windows, const float* plane, int64_t i, int64_t j);

enum class PoolKind { kMax, kAverage, kLp };

struct Pooling {
  PoolKind kind = PoolKind::kMax;
  int64_t p = 2;  // of kLp
};

// Pools `planes` planes of x to planes of y.
void PoolForward(const Pooling& pooling, const Windows& windows, int64_t planes, const float* x,
                 float* y);

// Only kLp reads `y`.
void PoolBackward(const Pooling& pooling, const Windows& windows, int64_t planes, const float* x,
                  const float* y, const float* dy, float* dx);

}  // namespace espalier
