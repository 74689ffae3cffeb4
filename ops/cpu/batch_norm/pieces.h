// Cuts the work of batch normalization of a tensor [N, C, ...]. Pieces are contiguous in memory:
// planes (one channel of one image) or parts of them; if planes are small, blocks of columns of the
// matrix [N, C * spatial]. The cuts are a function of the shape alone. Bounds is the fused
// activation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/cpu/simd/simd.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/tensor/shape.h"

namespace espalier::batch_norm {

constexpr int64_t kPiece = 32768, kSmall = 32, kColumns = 256;
constexpr int64_t kBlock = 256;   // elements between prefetches
constexpr int64_t kAhead = 1024;  // prefetch distance; the hardware prefetcher stops at pages

struct Shape {
  int64_t batch, channels, spatial;
  int64_t elements() const { return batch * spatial; }  // of a channel
  // Pieces per plane, or pieces of the images if planes are small.
  int64_t cuts() const { return (spatial < kSmall ? batch * kColumns : spatial) / kPiece + 1; }
};

inline Shape ShapeOf(const Dims& dims) {
  Shape shape{dims[0], dims[1], 1};
  for (size_t d = 2; d < dims.size(); ++d) shape.spatial *= dims[d];
  return shape;
}

// Calls body(channel, offset, elements, number of the piece) for all pieces.
template <typename Body>
void ForEachPiece(const Shape& s, const Body& body) {
  const int64_t cuts = s.cuts(), pieces = s.batch * s.channels * cuts;
  ParallelRanges(pieces, 4 * s.spatial / cuts, [&](int64_t begin, int64_t end) {
    int64_t plane = begin / cuts, cut = begin % cuts, c = plane % s.channels;
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t from = cut == 0 ? 0 : s.spatial * cut / cuts;
      const int64_t to = cut + 1 == cuts ? s.spatial : s.spatial * (cut + 1) / cuts;
      body(c, plane * s.spatial + from, to - from, piece);
      if (++cut < cuts) continue;
      cut = 0;
      ++plane;
      c = c + 1 == s.channels ? 0 : c + 1;
    }
  });
}

// Calls body(first column, columns, first image, images, number of the images' piece).
template <typename Body>
void ForEachColumns(const Shape& s, const Body& body) {
  const int64_t width = s.channels * s.spatial, across = (width + kColumns - 1) / kColumns;
  const int64_t cuts = s.cuts();
  ParallelRanges(across * cuts, 4 * s.batch * std::min(kColumns, width) / cuts,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t piece = begin; piece < end; ++piece) {
                     const int64_t column = piece % across * kColumns, cut = piece / across;
                     const int64_t first = s.batch * cut / cuts, last = s.batch * (cut + 1) / cuts;
                     body(column, std::min(kColumns, width - column), first, last - first, cut);
                   }
                 });
}

// Clamps the result to [low, high]; keeps NaN.
struct Bounds {
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();

  bool any() const { return std::isfinite(low); }
  ESPALIER_INLINE float Apply(float v) const {
    const float raised = v < low ? low : v;
    return raised > high ? high : raised;
  }
};

}  // namespace espalier::batch_norm
