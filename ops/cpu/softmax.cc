// softmax and log_softmax along any axis. Each line is computed in one order: its result does not
// depend on other lines.
#include <algorithm>
#include <cmath>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/simd/f32_math.h"
#include "ops/cpu/simd/row_sums.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

struct Lines {
  int64_t outer, length, inner;
};

Lines LinesOf(const Dims& dims, int64_t axis) {
  if (axis < 0) axis += static_cast<int64_t>(dims.size());
  Lines lines{1, dims[axis], 1};
  for (int64_t d = 0; d < axis; ++d) lines.outer *= dims[d];
  for (size_t d = axis + 1; d < dims.size(); ++d) lines.inner *= dims[d];
  return lines;
}

constexpr float kLowest = -__builtin_inff();

template <int W>
ESPALIER_INLINE float MaxOf(const float* x, int64_t n) {
  using namespace simd;
  const int64_t whole = n / W * W;
  Float<W> top = Splat<W>(kLowest);
  for (int64_t i = 0; i < whole; i += W) top = Max<W>(top, Load<W>(x + i));
  if (whole < n) top = Max<W>(top, LoadPartial<W>(x + whole, n - whole, kLowest));
  return MaxLane<W>(top);
}

// Returns sum(e^(x[i] - max)); stores the terms in y unless it is null.
template <int W>
ESPALIER_INLINE float SumOfExp(const float* x, float max, float* y, int64_t n) {
  using namespace simd;
  const int64_t whole = n / W * W;
  Float<W> sum = {};
  for (int64_t i = 0; i < whole; i += W) {
    const Float<W> e = Exp<W>(Load<W>(x + i) - max);
    if (y != nullptr) Store<W>(y + i, e);
    sum += e;
  }
  if (whole < n) {
    const Float<W> e = Exp<W>(LoadPartial<W>(x + whole, n - whole, kLowest) - max);
    if (y != nullptr) StorePartial<W>(y + whole, e, n - whole);
    sum += e;
  }
  return Sum<W>(sum);
}

template <int W>
struct Rows {
  static ESPALIER_INLINE void Run(bool log, const float* x, float* y, int64_t rows, int64_t n) {
    for (int64_t row = 0; row < rows; ++row, x += n, y += n) {
      const float max = MaxOf<W>(x, n);
      const float sum = SumOfExp<W>(x, max, log ? nullptr : y, n);
      if (log) {
        // x - max is exact where it matters; the sum is at least 1.
        const float rest = __builtin_logf(sum);
        for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - max) - rest;
      } else {
        const float scale = 1.0f / sum;
        for (int64_t i = 0; i < n; ++i) y[i] *= scale;
      }
    }
  }
};

// Softmax: dx = y * (dy - sum(y * dy)). Its logarithm: dx = dy - e^y * sum(dy).
template <int W>
struct RowsGradient {
  static ESPALIER_INLINE void Run(bool log, const float* y, const float* dy, float* dx,
                                  int64_t rows, int64_t n) {
    using namespace simd;
    const int64_t whole = n / W * W;
    for (int64_t row = 0; row < rows; ++row, y += n, dy += n, dx += n) {
      if (!log) {
        const float dot = Dot<W>(y, dy, n);
        for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - dot);
        continue;
      }
      const float sum = SumOf<W>(dy, n);
      for (int64_t i = 0; i < whole; i += W) {
        Store<W>(dx + i, Load<W>(dy + i) - Exp<W>(Load<W>(y + i)) * sum);
      }
      if (whole < n) {
        const Float<W> e = Exp<W>(LoadPartial<W>(y + whole, n - whole, kLowest));
        StorePartial<W>(dx + whole, LoadPartial<W>(dy + whole, n - whole) - e * sum, n - whole);
      }
    }
  }
};

// Interleaved lines (an outer axis): up to kLanes of them at a time.
constexpr int64_t kLanes = 64;

void Beside(bool log, const float* x, float* y, int64_t length, int64_t stride, int64_t lanes) {
  Vectorize(
      [](bool log, const float* x, float* y, int64_t length, int64_t stride, int64_t lanes) {
        float max[kLanes], sum[kLanes];
        std::fill_n(max, kLanes, kLowest);
        std::fill_n(sum, kLanes, 0.0f);
        for (int64_t i = 0; i < length; ++i) {
          const float* row = x + i * stride;
#pragma omp simd
          for (int64_t j = 0; j < lanes; ++j) max[j] = row[j] > max[j] ? row[j] : max[j];
        }
        for (int64_t i = 0; i < length; ++i) {
          const float* row = x + i * stride;
          float* out = y + i * stride;
#pragma omp simd
          for (int64_t j = 0; j < lanes; ++j) {
            const float e = FastExp(row[j] - max[j]);
            sum[j] += e;
            out[j] = e;
          }
        }
        if (log) {
          for (int64_t j = 0; j < lanes; ++j) sum[j] = std::log(sum[j]);
        }
        for (int64_t i = 0; i < length; ++i) {
          const float* row = x + i * stride;
          float* out = y + i * stride;
          if (log) {
#pragma omp simd
            for (int64_t j = 0; j < lanes; ++j) out[j] = (row[j] - max[j]) - sum[j];
          } else {
#pragma omp simd
            for (int64_t j = 0; j < lanes; ++j) out[j] = out[j] / sum[j];
          }
        }
      },
      log, x, y, length, stride, lanes);
}

void BesideGradient(bool log, const float* y, const float* dy, float* dx, int64_t length,
                    int64_t stride, int64_t lanes) {
  Vectorize(
      [](bool log, const float* y, const float* dy, float* dx, int64_t length, int64_t stride,
         int64_t lanes) {
        float sum[kLanes];
        std::fill_n(sum, kLanes, 0.0f);
        for (int64_t i = 0; i < length; ++i) {
          const float* yr = y + i * stride;
          const float* dyr = dy + i * stride;
          if (log) {
#pragma omp simd
            for (int64_t j = 0; j < lanes; ++j) sum[j] += dyr[j];
          } else {
#pragma omp simd
            for (int64_t j = 0; j < lanes; ++j) sum[j] += yr[j] * dyr[j];
          }
        }
        for (int64_t i = 0; i < length; ++i) {
          const float* yr = y + i * stride;
          const float* dyr = dy + i * stride;
          float* to = dx + i * stride;
          if (log) {
#pragma omp simd
            for (int64_t j = 0; j < lanes; ++j) to[j] = dyr[j] - FastExp(yr[j]) * sum[j];
          } else {
#pragma omp simd
            for (int64_t j = 0; j < lanes; ++j) to[j] = yr[j] * (dyr[j] - sum[j]);
          }
        }
      },
      log, y, dy, dx, length, stride, lanes);
}

// Calls rows(first element, number of lines) if lines are contiguous, otherwise beside(first
// element, number of interleaved lines).
template <typename ByRows, typename BySide>
void ForLines(const Lines& lines, int64_t work, const ByRows& rows, const BySide& beside) {
  if (lines.length == 0) return;
  if (lines.inner == 1) {
    ParallelRanges(lines.outer, work * lines.length,
                   [&](int64_t begin, int64_t end) { rows(begin * lines.length, end - begin); });
    return;
  }
  const int64_t blocks = (lines.inner + kLanes - 1) / kLanes;
  ParallelRanges(lines.outer * blocks, work * lines.length * std::min(lines.inner, kLanes),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t lane = i % blocks * kLanes;
                     beside(i / blocks * lines.length * lines.inner + lane,
                            std::min(kLanes, lines.inner - lane));
                   }
                 });
}

KernelFactory Forward(bool log) {
  return ViaF32([log](const KernelSpec& spec, std::string*) {
    return MakeKernel([log, axis = spec.attributes.Int("axis", -1)](const KernelArgs& args) {
      const Lines lines = LinesOf(args.inputs[0].dims(), axis);
      const float* x = args.inputs[0].as<float>();
      float* y = args.outputs[0].as<float>();
      ForLines(
          lines, 8,
          [&](int64_t at, int64_t n) {
            simd::Dispatch<Rows>(log, x + at, y + at, n, lines.length);
          },
          [&](int64_t at, int64_t n) {
            Beside(log, x + at, y + at, lines.length, lines.inner, n);
          });
      return KernelStatus::Ok();
    });
  });
}

// y, dy -> dx
KernelFactory Backward(bool log) {
  return ViaF32([log](const KernelSpec& spec, std::string*) {
    return MakeKernel([log, axis = spec.attributes.Int("axis", -1)](const KernelArgs& args) {
      if (!args.outputs[0].present()) return KernelStatus::Ok();
      const Lines lines = LinesOf(args.inputs[0].dims(), axis);
      const float* y = args.inputs[0].as<float>();
      const float* dy = args.inputs[1].as<float>();
      float* dx = args.outputs[0].as<float>();
      ForLines(
          lines, log ? 8 : 4,
          [&](int64_t at, int64_t n) {
            simd::Dispatch<RowsGradient>(log, y + at, dy + at, dx + at, n, lines.length);
          },
          [&](int64_t at, int64_t n) {
            BesideGradient(log, y + at, dy + at, dx + at, lines.length, lines.inner, n);
          });
      return KernelStatus::Ok();
    });
  });
}

}  // namespace

void RegisterSoftmaxCpu(KernelRegistry& registry) {
  registry.Add("softmax", Forward(false));
  registry.Add("softmax_grad", Backward(false));
  registry.Add("log_softmax", Forward(true));
  registry.Add("log_softmax_grad", Backward(true));
}

}  // namespace espalier
