// RMS norm. A row's bits depend on the row alone.
#include <cmath>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_sums.h"
#include "ops/cpu/rows.h"

namespace espalier {
namespace {

template <int W>
struct ForwardRows {
  static ESPALIER_INLINE void Run(const float* x, const float* weight, float* y, int64_t rows,
                                  int64_t n, float epsilon) {
    for (int64_t row = 0; row < rows; ++row, x += n, y += n) {
      const float inverse =
          1.0f / __builtin_sqrtf(simd::Dot<W>(x, x, n) / static_cast<float>(n) + epsilon);
      for (int64_t i = 0; i < n; ++i) y[i] = x[i] * inverse * weight[i];
    }
  }
};

// Also writes each row's 1 / rms for the gradient of the weight. dx may be null.
template <int W>
struct BackwardRows {
  static ESPALIER_INLINE void Run(const float* x, const float* weight, const float* dy, float* dx,
                                  float* inverses, int64_t rows, int64_t n, float epsilon) {
    for (int64_t row = 0; row < rows; ++row, x += n, dy += n) {
      const float inverse =
          1.0f / __builtin_sqrtf(simd::Dot<W>(x, x, n) / static_cast<float>(n) + epsilon);
      inverses[row] = inverse;
      if (dx == nullptr) continue;
      // With g = dy * weight: dx = g / rms - x * mean(g * x) / rms^3.
      const float along =
          simd::Dot3<W>(dy, weight, x, n) / static_cast<float>(n) * inverse * inverse;
      for (int64_t i = 0; i < n; ++i) dx[i] = inverse * (dy[i] * weight[i] - x[i] * along);
      dx += n;
    }
  }
};

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel([epsilon](const KernelArgs& args) {
    const float* x = args.inputs[0].as<float>();
    float* y = args.outputs[0].as<float>();
    const int64_t n = args.inputs[0].dims().back();
    ParallelRanges(RowsOf(args.inputs[0].dims()), 2 * n, [&](int64_t begin, int64_t end) {
      simd::Dispatch<ForwardRows>(x + begin * n, static_cast<const float*>(args.inputs[1].data),
                                  y + begin * n, end - begin, n, epsilon);
    });
    return KernelStatus::Ok();
  });
}

// x, weight, dy -> dx, dweight
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const float* x = args.inputs[0].as<float>();
        const float* weight = args.inputs[1].as<float>();
        const float* dy = args.inputs[2].as<float>();
        float* dx = args.outputs[0].as<float>();
        float* dweight = args.outputs[1].as<float>();
        float* inverses = static_cast<float*>(args.workspace);
        const int64_t n = args.inputs[0].dims().back(), rows = RowsOf(args.inputs[0].dims());
        ParallelRanges(rows, 4 * n, [&](int64_t begin, int64_t end) {
          simd::Dispatch<BackwardRows>(x + begin * n, weight, dy + begin * n,
                                       dx == nullptr ? nullptr : dx + begin * n, inverses + begin,
                                       end - begin, n, epsilon);
        });
        if (dweight == nullptr) return KernelStatus::Ok();
        // Threads share the columns, so that every sum runs over the rows in order.
        ParallelRanges(n, 3 * rows, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) dweight[i] = 0;
          for (int64_t row = 0; row < rows; ++row) {
            const float* xr = x + row * n;
            const float* dyr = dy + row * n;
            const float inverse = inverses[row];
            for (int64_t i = begin; i < end; ++i) dweight[i] += dyr[i] * (xr[i] * inverse);
          }
        });
        return KernelStatus::Ok();
      },
      RowsOf(spec.inputs[0].dims) * sizeof(float));
}

}  // namespace

void RegisterRmsNormCpu(KernelRegistry& registry) {
  registry.Add("rms_norm", ViaF32(MakeForward));
  registry.Add("rms_norm_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
