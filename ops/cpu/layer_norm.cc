// Layer norm, also of a sum with a residual. A row's bits depend on the row alone.
#include <algorithm>
#include <cmath>

#include "ops/cpu/convert.h"
#include "ops/cpu/copy.h"
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
  const float* x;      // backward with a residual: the sum
  const float* scale;  // may be null
  const float* bias;   // may be null
  const float* dy;
  float* y;  // forward: y, backward: dx; may be null
  Moments* moments;
  int64_t n;
  float epsilon;
  const float* residual = nullptr;  // added to x; backward: the sum's own gradient, added to dx
  float* sum = nullptr;             // with a residual; may be null
};

template <int W>
struct ForwardRows {
  static ESPALIER_INLINE void Run(const Operands* o, int64_t begin, int64_t end) {
    const int64_t n = o->n;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = o->x + row * n;
      if (o->residual != nullptr) {
        const float* residual = o->residual + row * n;
        float* sum = (o->sum != nullptr ? o->sum : o->y) + row * n;
        for (int64_t i = 0; i < n; ++i) sum[i] = x[i] + residual[i];
        if (o->y == nullptr) continue;
        x = sum;
      }
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
      if (o->residual != nullptr) {
        const float* residual = o->residual + row * n;
        for (int64_t i = 0; i < n; ++i) dx[i] += residual[i];
      }
    }
  }
};

const float* InputAt(const KernelArgs& args, size_t i) {
  return i < args.inputs.size() ? args.inputs[i].as<float>() : nullptr;
}
float* OutputAt(const KernelArgs& args, size_t i) {
  return i < args.outputs.size() ? args.outputs[i].as<float>() : nullptr;
}

// x, residual? (the operator has one), scale?, bias? -> y, sum?
KernelFactory Forward(bool residual) {
  return ViaF32([residual](const KernelSpec& spec, std::string*) {
    const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
    return MakeKernel([residual, epsilon](const KernelArgs& args) {
      const int64_t n = args.inputs[0].dims().back();
      const size_t first = residual ? 2 : 1;
      Operands operands = {InputAt(args, 0),
                           InputAt(args, first),
                           InputAt(args, first + 1),
                           nullptr,
                           OutputAt(args, 0),
                           nullptr,
                           n,
                           epsilon};
      if (residual) {
        operands.residual = InputAt(args, 1);
        operands.sum = OutputAt(args, 1);
      }
      ParallelRanges(RowsOf(args.inputs[0].dims()), 4 * n, [&](int64_t begin, int64_t end) {
        simd::Dispatch<ForwardRows>(&operands, begin, end);
      });
      return KernelStatus::Ok();
    });
  });
}

// dscale and dbias, which may be null, from every row's moments. Threads share the columns, so that
// every sum runs over the rows in order.
void SumParameters(const float* x, const float* dy, const Moments* moments, int64_t rows, int64_t n,
                   float* dscale, float* dbias) {
  ParallelRanges(n, 4 * rows, [&](int64_t begin, int64_t end) {
    if (dscale != nullptr) {
      for (int64_t i = begin; i < end; ++i) dscale[i] = 0;
      for (int64_t row = 0; row < rows; ++row) {
        const float* xr = x + row * n;
        const float* dyr = dy + row * n;
        const Moments m = moments[row];
        for (int64_t i = begin; i < end; ++i) dscale[i] += dyr[i] * ((xr[i] - m.mean) * m.inverse);
      }
    }
    if (dbias != nullptr) {
      for (int64_t i = begin; i < end; ++i) dbias[i] = 0;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = begin; i < end; ++i) dbias[i] += dy[row * n + i];
      }
    }
  });
}

// x, scale?, dy -> dx, dscale, dbias
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const float *x = InputAt(args, 0), *dy = InputAt(args, 2);
        Moments* moments = static_cast<Moments*>(args.workspace);
        const int64_t n = args.inputs[0].dims().back(), rows = RowsOf(args.inputs[0].dims());
        const Operands operands = {x, InputAt(args, 1), nullptr, dy, OutputAt(args, 0), moments,
                                   n, epsilon};
        ParallelRanges(rows, 8 * n, [&](int64_t begin, int64_t end) {
          simd::Dispatch<BackwardRows>(&operands, begin, end);
        });
        SumParameters(x, dy, moments, rows, n, OutputAt(args, 1), OutputAt(args, 2));
        return KernelStatus::Ok();
      },
      RowsOf(spec.inputs[0].dims) * sizeof(Moments));
}

// scale?, sum, dy?, dsum? -> dx, dresidual (alike), dscale, dbias
std::unique_ptr<Kernel> MakeResidualBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const float *sum = InputAt(args, 1), *dy = InputAt(args, 2), *dsum = InputAt(args, 3);
        Moments* moments = static_cast<Moments*>(args.workspace);
        const int64_t n = args.inputs[1].dims().back(), rows = RowsOf(args.inputs[1].dims());
        const int64_t bytes = args.inputs[1].spec.bytes();
        float *dx = OutputAt(args, 0), *dresidual = OutputAt(args, 1);
        float* first = dx != nullptr ? dx : dresidual;
        if (dy == nullptr) {  // only the sum was used
          if (first != nullptr) CopyBytes(dsum, first, bytes);
          for (size_t i = 2; i < args.outputs.size(); ++i) {
            if (OutputAt(args, i) != nullptr) std::fill_n(OutputAt(args, i), n, 0.0f);
          }
        } else {
          Operands operands = {sum, InputAt(args, 0), nullptr, dy, first, moments, n, epsilon};
          operands.residual = dsum;
          ParallelRanges(rows, 8 * n, [&](int64_t begin, int64_t end) {
            simd::Dispatch<BackwardRows>(&operands, begin, end);
          });
          SumParameters(sum, dy, moments, rows, n, OutputAt(args, 2), OutputAt(args, 3));
        }
        if (dx != nullptr && dresidual != nullptr) CopyBytes(dx, dresidual, bytes);
        return KernelStatus::Ok();
      },
      RowsOf(spec.inputs[1].dims) * sizeof(Moments));
}

}  // namespace

void RegisterLayerNormCpu(KernelRegistry& registry) {
  registry.Add("layer_norm", Forward(false));
  registry.Add("layer_norm_grad", ViaF32(MakeBackward));
  registry.Add("residual_layer_norm", Forward(true));
  registry.Add("residual_layer_norm_grad", ViaF32(MakeResidualBackward));
}

}  // namespace espalier
