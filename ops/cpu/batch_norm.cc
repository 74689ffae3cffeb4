// Batch normalization of [N, C, ...]. Sums over a channel are in f64, in an order that is a
// function of the shape alone.
#include <cmath>
#include <limits>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

// Work is cut into pieces that are contiguous in memory: planes (one channel of one image) or parts
// of them; if planes are small, blocks of columns of the matrix [N, C * spatial].
constexpr int64_t kPiece = 32768, kSmall = 32, kColumns = 256;
constexpr int64_t kBlock = 256;   // elements between prefetches
constexpr int64_t kAhead = 1024;  // prefetch distance; the hardware prefetcher stops at pages

struct Shape {
  int64_t batch, channels, spatial;
  int64_t elements() const { return batch * spatial; }  // of a channel
  // Pieces per plane, or pieces of the images if planes are small.
  int64_t cuts() const { return (spatial < kSmall ? batch * kColumns : spatial) / kPiece + 1; }
};

Shape ShapeOf(const Dims& dims) {
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

// (x - shift) * slope + constant
struct Affine {
  float shift, slope, constant;
};

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

int64_t CountOf(const Attributes& attributes, const Shape& s) {
  const int64_t count = attributes.Int("count");
  return count > 0 ? count : s.elements();
}

std::unique_ptr<Kernel> MakeStats(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    const Shape s = ShapeOf(args.inputs[0].dims());
    const int64_t count = CountOf(attributes, s);
    const float* x = args.inputs[0].as<float>();
    float* stats = args.outputs[0].as<float>();
    SumChannels(
        s, {x, x}, Mask::kNone, [](int64_t) { return Line(); },
        [&](int64_t c, const Sums& sums) {
          const double share = 1 / static_cast<double>(std::max<int64_t>(1, count));
          const double mean = sums.plain * share;
          const float rounded = static_cast<float>(mean);
          double squares = sums.along * share;
          // The rounding of the stored mean would be an error of the variance, so it is corrected.
          // Not for a part of the batch: the mean of the whole batch is not known yet.
          if (count == s.elements()) {
            squares += static_cast<double>(rounded) * rounded - mean * mean;
          }
          stats[c] = rounded;
          stats[s.channels + c] = static_cast<float>(squares);
        });
    return KernelStatus::Ok();
  });
}

// x, dstats -> dx = (dstats[0] + 2 x dstats[1]) / count
std::unique_ptr<Kernel> MakeStatsBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const Shape s = ShapeOf(args.inputs[0].dims());
    const double share = 1 / static_cast<double>(std::max<int64_t>(1, CountOf(attributes, s)));
    const float* x = args.inputs[0].as<float>();
    const float* dstats = args.inputs[1].as<float>();
    float* dx = args.outputs[0].as<float>();
    Map(s, {x, dx}, [&](int64_t c) {
      return Affine{0, static_cast<float>(2 * dstats[s.channels + c] * share),
                    static_cast<float>(dstats[c] * share)};
    });
    return KernelStatus::Ok();
  });
}

struct Moments {
  float mean;
  double variance;
};

// `stats` null: uses the running statistics.
Moments MomentsOf(const float* stats, const float* running_mean, const float* running_var,
                  int64_t channels, int64_t c) {
  if (stats == nullptr) return {running_mean[c], running_var[c]};
  const double mean = stats[c];
  return {stats[c], std::max(stats[channels + c] - mean * mean, 0.0)};
}

Bounds BoundsOf(const Attributes& attributes) {
  const std::string activation = attributes.String("activation");
  Bounds bounds;
  if (activation != "none") bounds.low = 0;
  if (activation == "relu6") bounds.high = 6;
  return bounds;
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes,
                     bounds = BoundsOf(spec.attributes)](const KernelArgs& args) {
    const Shape s = ShapeOf(args.inputs[0].dims());
    const double epsilon = attributes.Float("epsilon");
    const float momentum = static_cast<float>(attributes.Float("momentum"));
    const double count = static_cast<double>(CountOf(attributes, s));
    const float unbias = static_cast<float>(count > 1 ? count / (count - 1) : 1);
    const float* x = args.inputs[0].as<float>();
    const float* scale = args.inputs[1].as<float>();
    const float* bias = args.inputs[2].as<float>();
    float* running_mean = args.inputs[3].as<float>();
    float* running_var = args.inputs[4].as<float>();
    const float* stats =
        args.training && args.inputs.size() > 5 ? args.inputs[5].as<float>() : nullptr;
    if (args.training && stats == nullptr) {
      return KernelStatus::Error(
          "batch_norm: input 'stats' is missing, which training needs; expected the output of "
          "batch_norm_stats");
    }
    float* y = args.outputs[0].as<float>();
    if (y != nullptr) {
      std::vector<Affine> affine(s.channels);
      for (int64_t c = 0; c < s.channels; ++c) {
        const Moments m = MomentsOf(stats, running_mean, running_var, s.channels, c);
        affine[c] = {m.mean, static_cast<float>(scale[c] / std::sqrt(m.variance + epsilon)),
                     bias[c]};
      }
      const float* residual = args.inputs.size() > 6 ? args.inputs[6].as<float>() : nullptr;
      Map(s, {x, y, residual, bounds}, [&](int64_t c) { return affine[c]; });
    }
    if (stats != nullptr) {
      for (int64_t c = 0; c < s.channels; ++c) {
        const Moments m = MomentsOf(stats, running_mean, running_var, s.channels, c);
        running_mean[c] = (1 - momentum) * running_mean[c] + momentum * m.mean;
        running_var[c] =
            (1 - momentum) * running_var[c] + momentum * static_cast<float>(m.variance) * unbias;
      }
    }
    return KernelStatus::Ok();
  });
}

// x, scale, bias?, running_mean, running_var, stats?, y?, dy -> dx, dscale, dbias, dstats,
// dresidual. The path through the statistics to x is the gradient of batch_norm_stats, fed by
// dstats.
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const Bounds bounds = BoundsOf(spec.attributes);
  const std::string activation = spec.attributes.String("activation");
  const Mask mask = activation == "relu"    ? Mask::kOutput
                    : activation == "relu6" ? Mask::kInput
                                            : Mask::kNone;
  return MakeKernel([attributes = spec.attributes, bounds, mask](const KernelArgs& args) {
    const Shape s = ShapeOf(args.inputs[0].dims());
    const double epsilon = attributes.Float("epsilon");
    const float* x = args.inputs[0].as<float>();
    const float* scale = args.inputs[1].as<float>();
    const float* bias = args.inputs[2].as<float>();
    const float* stats = args.training ? args.inputs[5].as<float>() : nullptr;
    const float* dy = args.inputs[7].as<float>();
    const auto output = [&](size_t i) {
      return i < args.outputs.size() ? args.outputs[i].as<float>() : nullptr;
    };
    float *dx = output(0), *dscale = output(1), *dbias = output(2), *dstats = output(3);
    std::vector<double> inverses(s.channels);
    std::vector<Line> lines(s.channels);
    for (int64_t c = 0; c < s.channels; ++c) {
      const Moments m =
          MomentsOf(stats, args.inputs[3].as<float>(), args.inputs[4].as<float>(), s.channels, c);
      const double deviation = std::sqrt(m.variance + epsilon);
      inverses[c] = 1 / deviation;
      lines[c] = {m.mean, static_cast<float>(scale[c] / deviation),
                  mask == Mask::kInput ? bias[c] : 0.0f};
    }
    SumChannels(
        s, {x, dy, dx, args.inputs[6].as<float>(), output(4), bounds}, mask,
        [&](int64_t c) { return lines[c]; },
        [&](int64_t c, const Sums& sums) {
          const double inverse = inverses[c];
          if (dscale != nullptr) dscale[c] = static_cast<float>(sums.along * inverse);
          if (dbias != nullptr) dbias[c] = static_cast<float>(sums.plain);
          if (dstats == nullptr) return;
          if (stats == nullptr) {
            dstats[c] = dstats[s.channels + c] = 0;
            return;
          }
          // variance = mean of squares - mean^2. dmean uses the rounded dvariance, so that both
          // cancel in batch_norm_stats_grad.
          const float dvariance =
              static_cast<float>(-0.5 * scale[c] * sums.along * inverse * inverse * inverse);
          dstats[c] = static_cast<float>(-sums.plain * scale[c] * inverse -
                                         2.0 * lines[c].mean * dvariance);
          dstats[s.channels + c] = dvariance;
        });
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterBatchNormCpu(KernelRegistry& registry) {
  registry.Add("batch_norm_stats", ViaF32(MakeStats));
  registry.Add("batch_norm_stats_grad", ViaF32(MakeStatsBackward));
  registry.Add("batch_norm", ViaF32(MakeForward, {3, 4}));
  registry.Add("batch_norm_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
