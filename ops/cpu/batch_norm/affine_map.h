// Applies an affine function to each channel, adds an optional residual and clamps the result.
// Batch normalization and the gradient of its statistics are such functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/batch_norm/pieces.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier::batch_norm {

// (x - shift) * slope + constant
struct Affine {
  float shift, slope, constant;
};

struct MapOperands {
  const float* in;
  float* out;
  const float* residual = nullptr;  // added before clamping; may be null
  Bounds bounds = {};
};

// out = bounds(affine(channel)(in) + residual)
template <typename AffineOf>
void Map(const Shape& s, const MapOperands& o, const AffineOf& affine) {
  const auto from = [&o](int64_t at) {
    return MapOperands{o.in + at, o.out + at, o.residual == nullptr ? nullptr : o.residual + at,
                       o.bounds};
  };
  if (s.spatial >= kSmall) {
    return ForEachPiece(s, [&](int64_t c, int64_t at, int64_t n, int64_t) {
      Vectorize(
          [](MapOperands o, int64_t n, Affine f) {
            const Bounds bounds = o.bounds;
            const bool plain = o.residual == nullptr && !bounds.any();
            for (int64_t block = 0; block < n; block += kBlock) {
              const int64_t end = std::min(n, block + kBlock);
              for (int64_t i = block; i < end; i += 16) {
                __builtin_prefetch(o.in + i + kAhead);
                __builtin_prefetch(o.out + i + kAhead, 1);
              }
              if (plain) {
#pragma omp simd
                for (int64_t i = block; i < end; ++i) {
                  o.out[i] = (o.in[i] - f.shift) * f.slope + f.constant;
                }
                continue;
              }
              if (o.residual == nullptr) {
#pragma omp simd
                for (int64_t i = block; i < end; ++i) {
                  o.out[i] = bounds.Apply((o.in[i] - f.shift) * f.slope + f.constant);
                }
                continue;
              }
              for (int64_t i = block; i < end; i += 16) {
                __builtin_prefetch(o.residual + i + kAhead);
              }
#pragma omp simd
              for (int64_t i = block; i < end; ++i) {
                o.out[i] = bounds.Apply((o.in[i] - f.shift) * f.slope + f.constant + o.residual[i]);
              }
            }
          },
          from(at), n, affine(c));
    });
  }
  ForEachColumns(s, [&](int64_t column, int64_t columns, int64_t image, int64_t images, int64_t) {
    float shift[kColumns], slope[kColumns], constant[kColumns];
    for (int64_t i = 0; i < columns; ++i) {
      const Affine f = affine((column + i) / s.spatial);
      shift[i] = f.shift;
      slope[i] = f.slope;
      constant[i] = f.constant;
    }
    const int64_t width = s.channels * s.spatial, at = image * width + column;
    Vectorize(
        [](MapOperands o, int64_t rows, int64_t width, int64_t n, const float* shift,
           const float* slope, const float* constant) {
          const Bounds bounds = o.bounds;
          for (int64_t row = 0; row < rows; ++row, o.in += width, o.out += width) {
            if (o.residual == nullptr) {
#pragma omp simd
              for (int64_t i = 0; i < n; ++i) {
                o.out[i] = bounds.Apply((o.in[i] - shift[i]) * slope[i] + constant[i]);
              }
              continue;
            }
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
              o.out[i] =
                  bounds.Apply((o.in[i] - shift[i]) * slope[i] + constant[i] + o.residual[i]);
            }
            o.residual += width;
          }
        },
        from(at), images, width, columns, shift, slope, constant);
  });
}

}  // namespace espalier::batch_norm
