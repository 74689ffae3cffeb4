// Sums over each channel, for the statistics of batch normalization and for its gradients. Sums are
// in f64, in an order that is a function of the shape alone.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/cpu/batch_norm/pieces.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier::batch_norm {

struct Sums {
  double plain = 0, along = 0;  // of d, and of d * (x - mean)
};

// Which elements of dy pass the fused activation: d = dy there, else 0.
enum class Mask {
  kNone,    // all
  kOutput,  // where y > 0
  kInput,   // where the affine function of x lies within the bounds
};

struct SumOperands {
  const float *x, *dy;
  float* dx = nullptr;       // may be null, else set to d * slope
  const float* y = nullptr;  // Mask::kOutput
  float* d = nullptr;        // may be null, else set to d; not with Mask::kNone
  Bounds bounds = {};        // Mask::kInput

  SumOperands From(int64_t at) const {
    SumOperands o = *this;
    o.x += at;
    o.dy += at;
    if (o.dx != nullptr) o.dx += at;
    if (o.y != nullptr) o.y += at;
    if (o.d != nullptr) o.d += at;
    return o;
  }
};

// Operands of the sums of a channel.
struct Line {
  float mean = 0, slope = 0, constant = 0;
};

template <Mask kMask>
ESPALIER_INLINE float Counted(const SumOperands& o, int64_t i, Line f) {
  if constexpr (kMask == Mask::kOutput) return o.y[i] > 0 ? o.dy[i] : 0.0f;
  if constexpr (kMask == Mask::kInput) {
    const float v = (o.x[i] - f.mean) * f.slope + f.constant;
    return (v >= o.bounds.low) & (v <= o.bounds.high) ? o.dy[i] : 0.0f;
  }
  return o.dy[i];
}

template <int W>
struct WideTypes {
  typedef float Full __attribute__((vector_size(W * 4)));
  typedef int32_t Bits __attribute__((vector_size(W * 4)));
  typedef float Half __attribute__((vector_size(W * 2)));
  typedef double Double __attribute__((vector_size(W * 4)));
};

// Sums n elements of a channel in sixteen lanes, whatever the instruction set.
template <int W>
struct SumPiece {
  using Full = typename WideTypes<W>::Full;
  using Bits = typename WideTypes<W>::Bits;
  using Half = typename WideTypes<W>::Half;
  using Double = typename WideTypes<W>::Double;
  static constexpr int kLanes = 16, kHalf = W / 2, kVectors = kLanes / kHalf;

  template <typename V>
  static ESPALIER_INLINE V Load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }

  template <typename V>
  static ESPALIER_INLINE void Store(float* p, V v) {
    std::memcpy(p, &v, sizeof(v));
  }

  static ESPALIER_INLINE Full Where(Bits mask, Full v) {
    Bits bits;
    std::memcpy(&bits, &v, sizeof(v));
    bits &= mask;
    std::memcpy(&v, &bits, sizeof(v));
    return v;
  }

  static ESPALIER_INLINE double Sum(const Double* vectors) {
    double lanes[kLanes];
    std::memcpy(lanes, vectors, sizeof(lanes));
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    }
    return lanes[0];
  }

  template <Mask kMask>
  static ESPALIER_INLINE Full CountedAt(const SumOperands& o, int64_t i, Line f) {
    const Full d = Load<Full>(o.dy + i);
    if constexpr (kMask == Mask::kOutput) return Where(Load<Full>(o.y + i) > 0.0f, d);
    const Full z = (Load<Full>(o.x + i) - f.mean) * f.slope + f.constant;
    return Where((z >= o.bounds.low) & (z <= o.bounds.high), d);
  }

  template <Mask kMask>
  static ESPALIER_INLINE void RunMasked(const SumOperands& o, Line line, int64_t n, Sums* sums) {
    const double mean = line.mean;
    const float* x = o.x;
    float *dx = o.dx, *kept = o.d;
    Double plain[kVectors] = {}, along[kVectors] = {};
    int64_t k = 0;
    for (; k + kLanes <= n; k += kLanes) {
      const float* d = o.dy + k;
      float counted[kLanes];
      if constexpr (kMask != Mask::kNone) {
#pragma GCC unroll 4
        for (int v = 0; v < kLanes; v += W) Store(counted + v, CountedAt<kMask>(o, k + v, line));
        d = counted;
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Double wide = __builtin_convertvector(Load<Half>(d + v * kHalf), Double);
        plain[v] += wide;
        along[v] += wide * (__builtin_convertvector(Load<Half>(x + k + v * kHalf), Double) - mean);
      }
      __builtin_prefetch(x + k + kAhead);
      __builtin_prefetch(o.dy + k + kAhead);
      if constexpr (kMask == Mask::kOutput) __builtin_prefetch(o.y + k + kAhead);
      if (kMask != Mask::kNone && kept != nullptr) {
#pragma GCC unroll 4
        for (int v = 0; v < kLanes; v += W) Store(kept + k + v, Load<Full>(d + v));
        __builtin_prefetch(kept + k + kAhead, 1);
      }
      if (dx == nullptr) continue;
#pragma GCC unroll 4
      for (int v = 0; v < kLanes; v += W) Store(dx + k + v, Load<Full>(d + v) * line.slope);
      __builtin_prefetch(dx + k + kAhead, 1);
    }
    Sums all = {Sum(plain), Sum(along)};
    for (; k < n; ++k) {
      const float d = Counted<kMask>(o, k, line);
      all.plain += d;
      all.along += d * (x[k] - mean);
      if (kMask != Mask::kNone && kept != nullptr) kept[k] = d;
      if (dx != nullptr) dx[k] = d * line.slope;
    }
    *sums = all;
  }

  static ESPALIER_INLINE void Run(const SumOperands* o, Mask mask, Line line, int64_t n,
                                  Sums* sums) {
    switch (mask) {
      case Mask::kNone:
        return RunMasked<Mask::kNone>(*o, line, n, sums);
      case Mask::kOutput:
        return RunMasked<Mask::kOutput>(*o, line, n, sums);
      case Mask::kInput:
        return RunMasked<Mask::kInput>(*o, line, n, sums);
    }
  }
};

// Sums n columns.
template <Mask kMask>
void SumColumns(const SumOperands& o, int64_t rows, int64_t width, int64_t n, const Line* lines,
                Sums* sums) {
  double plain[kColumns] = {}, along[kColumns] = {};
  float mean[kColumns], slope[kColumns], constant[kColumns];
  for (int64_t i = 0; i < n; ++i) {
    mean[i] = lines[i].mean;
    slope[i] = lines[i].slope;
    constant[i] = lines[i].constant;
  }
  Vectorize(
      [](SumOperands o, int64_t rows, int64_t width, int64_t n, const float* mean,
         const float* slope, const float* constant, double* plain, double* along) {
        for (int64_t row = 0; row < rows; ++row, o = o.From(width)) {
      // Stores nothing, so that GCC vectorizes these loops.
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            const double d = Counted<kMask>(o, i, {mean[i], slope[i], constant[i]});
            plain[i] += d;
            along[i] += d * (static_cast<double>(o.x[i]) - mean[i]);
          }
          if (o.d != nullptr) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
              o.d[i] = Counted<kMask>(o, i, {mean[i], slope[i], constant[i]});
            }
          }
          if (o.dx == nullptr) continue;
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            o.dx[i] = Counted<kMask>(o, i, {mean[i], slope[i], constant[i]}) * slope[i];
          }
        }
      },
      o, rows, width, n, mean, slope, constant, plain, along);
  for (int64_t i = 0; i < n; ++i) sums[i] = {plain[i], along[i]};
}

// Computes the sums of every channel: line(channel) gives its operands, finish(channel, sums)
// receives the sums.
template <typename LineOf, typename Finish>
void SumChannels(const Shape& s, const SumOperands& o, Mask mask, const LineOf& line,
                 const Finish& finish) {
  const bool small = s.spatial < kSmall;
  const int64_t cuts = s.cuts(), width = s.channels * s.spatial;
  const auto sum_columns = mask == Mask::kNone     ? SumColumns<Mask::kNone>
                           : mask == Mask::kOutput ? SumColumns<Mask::kOutput>
                                                   : SumColumns<Mask::kInput>;
  // [outer][channel][inner]
  const int64_t outer = small ? cuts : s.batch, inner = small ? s.spatial : cuts;
  std::vector<Sums> parts(outer * s.channels * inner);
  if (small) {
    ForEachColumns(s, [&](int64_t column, int64_t n, int64_t image, int64_t images, int64_t cut) {
      Line lines[kColumns];
      for (int64_t i = 0; i < n; ++i) lines[i] = line((column + i) / s.spatial);
      sum_columns(o.From(image * width + column), images, width, n, lines,
                  &parts[cut * width + column]);
    });
  } else {
    ForEachPiece(s, [&](int64_t c, int64_t at, int64_t n, int64_t piece) {
      const SumOperands here = o.From(at);
      simd::Dispatch<SumPiece>(&here, mask, line(c), n, &parts[piece]);
    });
  }
  ParallelRanges(s.channels, 4 * outer * inner, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      Sums all;
      for (int64_t i = 0; i < outer; ++i) {
        for (int64_t k = 0; k < inner; ++k) {
          const Sums& part = parts[(i * s.channels + c) * inner + k];
          all.plain += part.plain;
          all.along += part.along;
        }
      }
      finish(c, all);
    }
  });
}

}  // namespace espalier::batch_norm
