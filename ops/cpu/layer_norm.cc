// Layer norm. A row's bits depend on the row alone.
#include <cmath>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_sums.h"
#include "ops/cpu/rows.h"

namespace espalier {
namespace {

struct Moments {
  float mean, inverse;  // 1 / standard deviation
};

template <int W>
ESPALIER_INLINE Moments MomentsOf(const float* x, int64_t n, float epsilon) {
  const float mean = simd::SumOf<W>(x, n) / static_cast<float>(n);
  const float variance = simd::SquaredDistance<W>(x, mean, n) / static_cast<float>(n);
  return {mean, 1.0f / __builtin_sqrtf(variance + epsilon)};
}

struct Operands {
  const float* x;
  const float* scale;  // may be null
  const float* bias;   // may be null
  const float* dy;
  float* y;  // forward: y, backward: dx (may be null)
  Moments* moments;
  int64_t n;
  float epsilon;
};

template <int W>
struct ForwardRows {
  static ESPALIER_INLINE void Run(const Operands* o, int64_t begin, int64_t end) {
    const int64_t n = o->n;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = o->x + row * n;
      float* y = o->y + row * n;
      const Moments m = MomentsOf<W>(x, n, o->epsilon);
      for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - m.mean) * m.inverse;
      if (o->scale != nullptr) {
        for (int64_t i = 0; i < n; ++i) y[i] *= o->scale[i];
      }
      if (o->bias != nullptr) {
        for (int64_t i = 0; i < n; ++i) y[i] += o->bias[i];
      }
    }
  }
};

template <int W>
struct BackwardRows {
  static ESPALIER_INLINE void Run(const Operands* o, int64_t begin, int64_t end) {
    const int64_t n = o->n;
    const float size = static_cast<float>(n);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = o->x + row * n;
      const float* dy = o->dy + row * n;
      const Moments m = MomentsOf<W>(x, n, o->epsilon);
      o->moments[row] = m;
      if (o->y == nullptr) continue;
      float* dx = o->y + row * n;
      // With g = dy * scale and h = (x - mean) / sd: dx = (g - mean(g) - h * mean(g * h)) / sd.
      if (o->scale != nullptr) {
        for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * o->scale[i];
      } else {
        for (int64_t i = 0; i < n; ++i) dx[i] = dy[i];
      }
      const float sum = simd::SumOf<W>(dx, n);
      const float along = (simd::Dot<W>(dx, x, n) - m.mean * sum) * m.inverse / size;
      const float mean = sum / size;
      for (int64_t i = 0; i < n; ++i) {
        dx[i] = m.inverse * (dx[i] - mean - (x[i] - m.mean) * m.inverse * along);
      }
    }
  }
};

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel([epsilon](const KernelArgs& args) {
    const auto input = [&](size_t i) {
      return i < args.inputs.size() ? args.inputs[i].as<float>() : nullptr;
    };
    const int64_t n = args.inputs[0].dims().back();
    const Operands operands = {input(0), input(1), input(2), nullptr, args.outputs[0].as<float>(),
                               nullptr,  n,        epsilon};
    ParallelRanges(RowsOf(args.inputs[0].dims()), 4 * n, [&](int64_t begin, int64_t end) {
      simd::Dispatch<ForwardRows>(&operands, begin, end);
    });
    return KernelStatus::Ok();
  });
}

// x, scale, dy -> dx, dscale, dbias
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const auto output = [&](size_t i) {
          return i < args.outputs.size() ? args.outputs[i].as<float>() : nullptr;
        };
        const float* x = args.inputs[0].as<float>();
        const float* dy = args.inputs[2].as<float>();
        float* dscale = output(1);
        float* dbias = output(2);
        Moments* moments = static_cast<Moments*>(args.workspace);
        const int64_t n = args.inputs[0].dims().back(), rows = RowsOf(args.inputs[0].dims());
        const Operands operands = {
            x, args.inputs[1].as<float>(), nullptr, dy, output(0), moments, n, epsilon};
        ParallelRanges(rows, 8 * n, [&](int64_t begin, int64_t end) {
          simd::Dispatch<BackwardRows>(&operands, begin, end);
        });
        // Threads share the columns, so that every sum runs over the rows in order.
        ParallelRanges(n, 4 * rows, [&](int64_t begin, int64_t end) {
          if (dscale != nullptr) {
            for (int64_t i = begin; i < end; ++i) dscale[i] = 0;
            for (int64_t row = 0; row < rows; ++row) {
              const float* xr = x + row * n;
              const float* dyr = dy + row * n;
              const Moments m = moments[row];
              for (int64_t i = begin; i < end; ++i) {
                dscale[i] += dyr[i] * ((xr[i] - m.mean) * m.inverse);
              }
            }
          }
          if (dbias != nullptr) {
            for (int64_t i = begin; i < end; ++i) dbias[i] = 0;
            for (int64_t row = 0; row < rows; ++row) {
              for (int64_t i = begin; i < end; ++i) dbias[i] += dy[row * n + i];
            }
          }
        });
        return KernelStatus::Ok();
      },
      RowsOf(spec.inputs[0].dims) * sizeof(Moments));
}

}  // namespace

void RegisterLayerNormCpu(KernelRegistry& registry) {
  registry.Add("layer_norm", ViaF32(MakeForward));
  registry.Add("layer_norm_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
