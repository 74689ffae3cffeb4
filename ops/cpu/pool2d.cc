// pool2d. The gradient of max pooling is vectorized: finds the maxima of a row of windows, then
// each row of the image gathers its gradients. Rows are split by column modulo the stride
// ("phase"), so that adjacent windows read adjacent elements.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/pool.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/shard_padding.h"

namespace espalier {
namespace {

constexpr int64_t kLanes = 16;  // elements at a time
constexpr int64_t kAhead =
    1024;  // prefetch distance; the hardware prefetcher does not follow the rows
constexpr float kLowest = -std::numeric_limits<float>::infinity();

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Windows along one dimension: window i covers positions i * stride - pad + k * dilation, k <
// kernel.
struct Steps {
  int64_t size, windows;  // of the image, of the result
  int64_t kernel, stride, pad, dilation;
};

// A tap: an element of a window's row. For window j it is at [phase][j + shift] of a row of the
// image.
struct Tap {
  int64_t k, phase, shift;
  int64_t offset = 0;  // of [phase][shift]
};

struct MaxPool {
  Steps rows, columns;
  std::vector<Tap> taps;                      // of a row of a window
  std::vector<Tap> gathering;                 // the same by phase, later ones first
  std::vector<int32_t> first;                 // of window j, the first tap inside of the image
  int64_t left = 0;                           // elements before the image in a row of a phase
  int64_t width = 0;                          // of a row of a phase
  int64_t result_left = 0, result_width = 0;  // of a row of windows
  int64_t span = 0;                           // rows of the image in a window
  // Sizes of ring buffers, powers of 2: rows of the image that a window spans, and rows of windows
  // that an element can belong to.
  int64_t kept = 0, kept_windows = 0;
  // For every row of the image: the rows of windows that contain it, and their first tap in it.
  std::vector<std::vector<std::pair<int64_t, int32_t>>> windows_of;

  MaxPool(const Attributes& a, const Dims& x, const Dims& y) {
    const std::vector<int64_t> kernel = a.Ints("kernel"), strides = a.Ints("strides", {1, 1}),
                               pads = a.Ints("pads", {0, 0, 0, 0}),
                               dilations = a.Ints("dilations", {1, 1});
    rows = {x[2], y[2], kernel[0], strides[0], pads[0], dilations[0]};
    columns = {x[3], y[3], kernel[1], strides[1], pads[1], dilations[1]};
    int64_t lowest = 0, highest = 0;
    for (int64_t k = 0; k < columns.kernel; ++k) {
      const int64_t at = k * columns.dilation - columns.pad;
      const int64_t phase = (at % columns.stride + columns.stride) % columns.stride;
      taps.push_back({k, phase, (at - phase) / columns.stride});
      lowest = std::min(lowest, taps.back().shift);
      highest = std::max(highest, taps.back().shift);
    }
    for (int64_t j = 0; j < columns.windows + kLanes; ++j) {
      int64_t k = 0;
      while (k < columns.kernel && j * columns.stride - columns.pad + k * columns.dilation < 0) ++k;
      const int64_t at = j * columns.stride - columns.pad + k * columns.dilation;
      first.push_back(k < columns.kernel && at < columns.size ? static_cast<int32_t>(k) : kNone);
    }
    const int64_t of_phase = CeilDivide(columns.size, columns.stride);
    left = -lowest;
    width = left + std::max(of_phase, columns.windows + highest) + kLanes;
    for (Tap& tap : taps) tap.offset = tap.phase * width + tap.shift;
    gathering.assign(taps.rbegin(), taps.rend());
    std::stable_sort(gathering.begin(), gathering.end(),
                     [](const Tap& a, const Tap& b) { return a.phase < b.phase; });
    result_left = highest;
    result_width = highest + std::max(columns.windows, of_phase - lowest) + kLanes;
    span = (rows.kernel - 1) * rows.dilation + 1;
    kept = PowerOf2(span);
    kept_windows = PowerOf2((span - 1) / rows.stride + 1);
    windows_of.resize(rows.size);
    for (int64_t i = 0; i < rows.windows; ++i) {
      for (int64_t k = 0; k < rows.kernel; ++k) {
        const int64_t r = i * rows.stride - rows.pad + k * rows.dilation;
        if (r < 0 || r >= rows.size) continue;
        windows_of[r].emplace_back(i, static_cast<int32_t>(k * columns.kernel));
      }
    }
  }

  static int64_t PowerOf2(int64_t n) { return std::bit_ceil(static_cast<uint64_t>(n)); }

  // So negative that adding taps keeps it invalid.
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::min() / 2;

  // Whether the vector path pays: rows fill vectors, and gathering, whose cost grows with the
  // image, costs no more than scanning the windows.
  bool Suits() const {
    return rows.kernel * columns.kernel < -kNone && columns.windows >= 4 &&
           rows.size * columns.size <=
               8 * rows.windows * columns.windows * rows.stride * columns.stride;
  }
};

// Computes the gradient of planes, one after the other; one instance per thread.
class MaxPoolGradient {
 public:
  explicit MaxPoolGradient(const MaxPool& pool)
      : p_(pool),
        image_(p_.kept * p_.columns.stride * p_.width, kLowest),
        maxima_(p_.kept_windows * p_.result_width, MaxPool::kNone),
        dy_(p_.kept_windows * p_.result_width),
        gathered_(p_.columns.stride * p_.width),
        values_(p_.rows.kernel * p_.columns.kernel),
        sources_(values_.size()) {}

  void Run(const float* x, const float* dy, float* dx) {
    const Steps &rows = p_.rows, &columns = p_.columns;
    int64_t taken = 0, done = 0;  // rows of the image
    for (int64_t i = 0; i < rows.windows; ++i) {
      const int64_t start = i * rows.stride - rows.pad;
      for (taken = std::max(taken, start); taken < std::min(start + p_.span, rows.size); ++taken) {
        TakeApart(x + taken * columns.size, Row(taken));
      }
      FindMaxima(i);
      std::memcpy(dy_.data() + (i & (p_.kept_windows - 1)) * p_.result_width + p_.result_left,
                  dy + i * columns.windows, columns.windows * sizeof(float));
      const int64_t end = i + 1 < rows.windows ? start + rows.stride : rows.size;
      for (; done < std::min(end, rows.size); ++done) Gather(done, dx + done * columns.size);
    }
  }

 private:
  // Windows for which this tap lies in a phase of a row of the image.
  struct Source {
    const int32_t* maxima;
    const float* dy;
    int32_t tap;
  };

  float* Row(int64_t r) {
    return image_.data() + (r & (p_.kept - 1)) * p_.columns.stride * p_.width + p_.left;
  }

  void TakeApart(const float* row, float* to) const {
    const int64_t n = p_.columns.size, stride = p_.columns.stride;
    for (int64_t c = 0; c < n; c += kLanes) __builtin_prefetch(row + c + kAhead);
    if (stride == 1) {
      std::memcpy(to, row, n * sizeof(float));
    } else if (stride == 2) {
      Vectorize(
          [](const float* row, float* even, float* odd, int64_t n) {
#pragma omp simd
            for (int64_t q = 0; q < n; ++q) {
              even[q] = row[2 * q];
              odd[q] = row[2 * q + 1];
            }
          },
          row, to, to + p_.width, n / 2);
      if (n % 2 != 0) to[n / 2] = row[n - 1];
    } else {
      for (int64_t c = 0; c < n; ++c) to[c % stride * p_.width + c / stride] = row[c];
    }
  }

  void PutTogether(float* row) const {
    const int64_t n = p_.columns.size, stride = p_.columns.stride;
    for (int64_t c = 0; c < n; c += kLanes) __builtin_prefetch(row + c + kAhead, 1);
    const float* from = gathered_.data();
    if (stride == 1) {
      std::memcpy(row, from, n * sizeof(float));
    } else if (stride == 2) {
      Vectorize(
          [](const float* even, const float* odd, float* row, int64_t n) {
#pragma omp simd
            for (int64_t q = 0; q < n; ++q) {
              row[2 * q] = even[q];
              row[2 * q + 1] = odd[q];
            }
          },
          from, from + p_.width, row, n / 2);
      if (n % 2 != 0) row[n - 1] = from[n / 2];
    } else {
      for (int64_t c = 0; c < n; ++c) row[c] = from[c % stride * p_.width + c / stride];
    }
  }

  // Finds the taps of the maxima of row i of windows. REQUIRES: its rows of the image are loaded.
  void FindMaxima(int64_t i) {
    const Steps& rows = p_.rows;
    const int64_t start = i * rows.stride - rows.pad;
    int64_t begin = 0, end = rows.kernel;
    while (begin < end && start + begin * rows.dilation < 0) ++begin;
    while (begin < end && start + (end - 1) * rows.dilation >= rows.size) --end;
    int64_t count = 0;
    for (int64_t k = begin; k < end; ++k) {
      const float* row = Row(start + k * rows.dilation);
      for (const Tap& tap : p_.taps) values_[count++] = row + tap.offset;
    }
    const int32_t top =
        begin < end ? static_cast<int32_t>(begin * p_.columns.kernel) : MaxPool::kNone;
    int32_t* maxima =
        maxima_.data() + (i & (p_.kept_windows - 1)) * p_.result_width + p_.result_left;
    Vectorize(
        [](const float* const* values, int64_t count, const int32_t* first, int32_t top, int64_t n,
           int32_t* maxima) {
          for (int64_t j = 0; j < n; j += kLanes) {
            float best[kLanes];
            int32_t at[kLanes];
            for (int l = 0; l < kLanes; ++l) {
              best[l] = kLowest;
              at[l] = first[j + l] + top;
            }
            for (int64_t k = 0; k < count; ++k) {
              const float* value = values[k] + j;
              const int32_t tap = top + static_cast<int32_t>(k);
#pragma omp simd
              for (int l = 0; l < kLanes; ++l) {
                const bool better = value[l] > best[l] || value[l] != value[l];  // a NaN wins
                best[l] = better ? value[l] : best[l];
                at[l] = better ? tap : at[l];
              }
              asm volatile("");  // keeps GCC from unroll-and-jam, which would prevent vectorization
                                 // of the loop above
            }
            std::memcpy(maxima + j, at, sizeof(at));
          }
        },
        values_.data(), count, p_.first.data(), top, p_.columns.windows, maxima);
    // The last lanes may lie beyond the windows.
    std::fill_n(maxima + p_.columns.windows, kLanes, MaxPool::kNone);
  }

  // Computes row r of dx. REQUIRES: every row of windows that contains it is done.
  void Gather(int64_t r, float* dx) {
    auto tap = p_.gathering.begin();
    for (int64_t phase = 0; phase < p_.columns.stride; ++phase) {
      auto end = tap;
      while (end != p_.gathering.end() && end->phase == phase) ++end;
      int64_t count = 0;
      for (const auto& [i, base] : p_.windows_of[r]) {
        const int64_t row = (i & (p_.kept_windows - 1)) * p_.result_width + p_.result_left;
        for (auto t = tap; t != end; ++t) {
          sources_[count++] = {maxima_.data() + row - t->shift, dy_.data() + row - t->shift,
                               base + static_cast<int32_t>(t->k)};
        }
      }
      tap = end;
      Vectorize(
          [](const Source* sources, int64_t count, int64_t n, float* to) {
            for (int64_t q = 0; q < n; q += kLanes) {
              float sum[kLanes] = {};
              for (int64_t s = 0; s < count; ++s) {
                const int32_t* maxima = sources[s].maxima + q;
                const float* dy = sources[s].dy + q;
                const int32_t tap = sources[s].tap;
#pragma omp simd
                for (int l = 0; l < kLanes; ++l) sum[l] += maxima[l] == tap ? dy[l] : 0.0f;
                asm volatile("");  // as above
              }
              std::memcpy(to + q, sum, sizeof(sum));
            }
          },
          sources_.data(), count, CeilDivide(p_.columns.size - phase, p_.columns.stride),
          gathered_.data() + phase * p_.width);
    }
    PutTogether(dx);
  }

  const MaxPool& p_;
  std::vector<float> image_;     // [kept][phase][width]: lowest where the image is not
  std::vector<int32_t> maxima_;  // [kept_windows][result_width]: the tap of each window's maximum
  std::vector<float> dy_;        // [kept_windows][result_width]
  std::vector<float> gathered_;  // [phase][width]
  std::vector<const float*> values_;
  std::vector<Source> sources_;
};

Pooling Describe(const Attributes& a) {
  const std::string kind = a.String("kind");
  return {kind == "max"  ? PoolKind::kMax
          : kind == "lp" ? PoolKind::kLp
                         : PoolKind::kAverage,
          a.Int("p", 2)};
}

// Every run has the height and width of the spec.
Windows WindowsOf(const KernelSpec& spec, const TensorSpec& y) {
  const TensorSpec& x = spec.inputs[0];
  return SlidingWindows(ShardAttributes(spec.attributes, x, y, spec.attributes.Ints("kernel")),
                        x.dims, y.dims);
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([pooling = Describe(spec.attributes),
                     windows = WindowsOf(spec, spec.outputs[0])](const KernelArgs& args) {
    const TensorView& x = args.inputs[0];
    PoolForward(pooling, windows, x.dims()[0] * x.dims()[1], x.as<float>(),
                args.outputs[0].as<float>());
    return KernelStatus::Ok();
  });
}

std::unique_ptr<Kernel> MakeMaxBackward(MaxPool pool) {
  return MakeKernel([pool = std::move(pool)](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const Dims& dims = args.inputs[0].dims();
    const float *x = args.inputs[0].as<float>(), *dy = args.inputs[2].as<float>();
    float* dx = args.outputs[0].as<float>();
    const int64_t in = pool.rows.size * pool.columns.size,
                  out = pool.rows.windows * pool.columns.windows;
    ParallelRanges(dims[0] * dims[1], 4 * in, [&](int64_t begin, int64_t end) {
      MaxPoolGradient gradient(pool);
      for (int64_t plane = begin; plane < end; ++plane) {
        gradient.Run(x + plane * in, dy + plane * out, dx + plane * in);
      }
    });
    return KernelStatus::Ok();
  });
}

// x, y?, dy -> dx
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  if (Describe(spec.attributes).kind == PoolKind::kMax) {
    const TensorSpec &x = spec.inputs[0], &dy = spec.inputs[2];
    MaxPool pool(ShardAttributes(spec.attributes, x, dy, spec.attributes.Ints("kernel")), x.dims,
                 dy.dims);
    if (pool.Suits()) return MakeMaxBackward(std::move(pool));
  }
  return MakeKernel([pooling = Describe(spec.attributes),
                     windows = WindowsOf(spec, spec.inputs[2])](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const TensorView& x = args.inputs[0];
    PoolBackward(pooling, windows, x.dims()[0] * x.dims()[1], x.as<float>(),
                 args.inputs[1].as<float>(), args.inputs[2].as<float>(),
                 args.outputs[0].as<float>());
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterPool2dCpu(KernelRegistry& registry) {
  registry.Add("pool2d", ViaF32(MakeForward));
  registry.Add("pool2d_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
