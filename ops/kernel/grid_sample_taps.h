// One point of grid_sample: which elements of a plane it reads, with which weights, and the
// derivatives of the weights by the point. Uses PyTorch's formulas. Shared by the backends.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/kernel/host_device.h"

namespace espalier {

enum class GridMode { kBilinear, kNearest, kBicubic };
enum class GridPadding { kZeros, kBorder, kReflection };

struct GridSampling {
  GridMode mode;
  GridPadding padding;
  bool align_corners;
  int64_t height, width;  // of x
};

constexpr int kMaxGridTaps = 16;

struct GridTaps {
  int count = 0;
  int64_t index[kMaxGridTaps];  // in the plane; -1: outside, reads 0
  float weight[kMaxGridTaps];
  float dx[kMaxGridTaps], dy[kMaxGridTaps];  // derivatives of the weight by x and y of the grid
};

namespace grid_internal {

struct Coordinate {
  float at;
  float slope;  // its derivative
};

ESPALIER_HOST_DEVICE inline Coordinate Clip(Coordinate c, float last) {
  if (!(c.at > 0)) return {0, 0};
  if (c.at >= last) return {last, 0};
  return c;
}

// Reflects at both ends of [low, low + span].
ESPALIER_HOST_DEVICE inline Coordinate Reflect(Coordinate c, float low, float span) {
  if (span <= 0) return {0, 0};
  float at = c.at - low, slope = c.slope;
  if (at < 0) {
    at = -at;
    slope = -slope;
  }
  const float flips = floorf(at / span);
  const float extra = at - flips * span;
  if (fmodf(flips, 2.0f) == 0) return {extra + low, slope};
  return {span - extra + low, -slope};
}

ESPALIER_HOST_DEVICE inline Coordinate Pad(const GridSampling& s, Coordinate c, int64_t size) {
  const float extent = static_cast<float>(size);
  if (s.padding == GridPadding::kZeros) return c;
  if (s.padding == GridPadding::kReflection) {
    c = s.align_corners ? Reflect(c, 0, extent - 1) : Reflect(c, -0.5f, extent);
  }
  return Clip(c, extent - 1);
}

ESPALIER_HOST_DEVICE inline Coordinate Scale(const GridSampling& s, float grid, int64_t size) {
  const float extent = static_cast<float>(size);
  if (s.align_corners) return {(grid + 1) / 2 * (extent - 1), (extent - 1) / 2};
  return {((grid + 1) * extent - 1) / 2, extent / 2};
}

// Returns the index, or -1 if `at` lies outside.
ESPALIER_HOST_DEVICE inline int64_t IndexOf(float at, int64_t size) {
  return at >= 0 && at < static_cast<float>(size) ? static_cast<int64_t>(at) : -1;
}

// Weights of the four neighbors at -1, 0, 1, 2 of a point at t in [0, 1), and their derivatives.
ESPALIER_HOST_DEVICE inline void CubicWeights(float t, float weight[4], float slope[4]) {
  constexpr float a = -0.75f;
  for (int k = 0; k < 4; ++k) {
    const float signed_distance = t - static_cast<float>(k - 1);
    const float sign = signed_distance < 0 ? -1.0f : 1.0f;
    const float d = signed_distance * sign;
    if (k == 1 || k == 2) {
      weight[k] = ((a + 2) * d - (a + 3)) * d * d + 1;
      slope[k] = sign * (3 * (a + 2) * d - 2 * (a + 3)) * d;
    } else {
      weight[k] = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
      slope[k] = sign * ((3 * a * d - 10 * a) * d + 8 * a);
    }
  }
}

}  // namespace grid_internal

// (gx, gy): the grid's coordinates, horizontal first.
ESPALIER_HOST_DEVICE inline void MakeGridTaps(const GridSampling& s, float gx, float gy,
                                              GridTaps* taps) {
  using grid_internal::Coordinate;
  Coordinate x = grid_internal::Scale(s, gx, s.width), y = grid_internal::Scale(s, gy, s.height);
  if (s.mode != GridMode::kBicubic) {
    x = grid_internal::Pad(s, x, s.width);
    y = grid_internal::Pad(s, y, s.height);
  }
  const auto index_at = [&s](float column, float row) -> int64_t {
    const int64_t c = grid_internal::IndexOf(column, s.width);
    const int64_t r = grid_internal::IndexOf(row, s.height);
    return c < 0 || r < 0 ? -1 : r * s.width + c;
  };
  taps->count = 0;
  const auto add = [taps](int64_t index, float weight, float dx, float dy) {
    const int k = taps->count++;
    taps->index[k] = index;
    taps->weight[k] = weight;
    taps->dx[k] = dx;
    taps->dy[k] = dy;
  };
  if (s.mode == GridMode::kNearest) {
    add(index_at(rintf(x.at), rintf(y.at)), 1, 0, 0);
    return;
  }
  const float left = floorf(x.at), top = floorf(y.at);
  const float tx = x.at - left, ty = y.at - top;
  if (s.mode == GridMode::kBilinear) {
    add(index_at(left, top), (1 - tx) * (1 - ty), -(1 - ty) * x.slope, -(1 - tx) * y.slope);
    add(index_at(left + 1, top), tx * (1 - ty), (1 - ty) * x.slope, -tx * y.slope);
    add(index_at(left, top + 1), (1 - tx) * ty, -ty * x.slope, (1 - tx) * y.slope);
    add(index_at(left + 1, top + 1), tx * ty, ty * x.slope, tx * y.slope);
    return;
  }
  float wx[4], wy[4], sx[4], sy[4];
  grid_internal::CubicWeights(tx, wx, sx);
  grid_internal::CubicWeights(ty, wy, sy);
  for (int r = 0; r < 4; ++r) {
    const float row = grid_internal::Pad(s, {top + static_cast<float>(r - 1), 1}, s.height).at;
    for (int c = 0; c < 4; ++c) {
      const float column = grid_internal::Pad(s, {left + static_cast<float>(c - 1), 1}, s.width).at;
      add(index_at(column, row), wx[c] * wy[r], sx[c] * wy[r] * x.slope, wx[c] * sy[r] * y.slope);
    }
  }
}

}  // namespace espalier
