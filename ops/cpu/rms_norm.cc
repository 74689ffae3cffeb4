// RMS norm, also of a sum with a residual. A row's bits depend on the row alone.
#include <algorithm>

#include "ops/cpu/convert.h"
#include "ops/cpu/copy.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_sums.h"
#include "ops/cpu/rows.h"

namespace espalier {
namespace {

struct Operands {
  const float* x;  // backward with a residual: the sum
  const float* weight;
  const float* dy;
  float* y;         // forward: y, backward: dx; may be null
  float* inverses;  // backward: every row's 1 / rms, for the gradient of the weight
  int64_t n;
  float epsilon;
  const float* residual = nullptr;  // added to x; backward: the sum's own gradient, added to dx
  float* sum = nullptr;             // with a residual; may be null
};

template <int W>
ESPALIER_INLINE float InverseRms(const float* x, int64_t n, float epsilon) {
  return 1.0f / __builtin_sqrtf(simd::Dot<W>(x, x, n) / static_cast<float>(n) + epsilon);
}

template <int W>
struct ForwardRows {
  static ESPALIER_INLINE void Run(const Operands* o, int64_t begin, int64_t end) {
    const int64_t n = o->n;
    const float* weight = o->weight;
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
      const float inverse = InverseRms<W>(x, n, o->epsilon);
      for (int64_t i = 0; i < n; ++i) y[i] = x[i] * inverse * weight[i];
    }
  }
};

template <int W>
struct BackwardRows {
  static ESPALIER_INLINE void Run(const Operands* o, int64_t begin, int64_t end) {
    const int64_t n = o->n;
    const float* weight = o->weight;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = o->x + row * n;
      const float* dy = o->dy + row * n;
      const float inverse = InverseRms<W>(x, n, o->epsilon);
      o->inverses[row] = inverse;
      if (o->y == nullptr) continue;
      float* dx = o->y + row * n;
      // With g = dy * weight: dx = g / rms - x * mean(g * x) / rms^3.
      const float along =
          simd::Dot3<W>(dy, weight, x, n) / static_cast<float>(n) * inverse * inverse;
      if (o->residual != nullptr) {
        const float* residual = o->residual + row * n;
        for (int64_t i = 0; i < n; ++i) {
          dx[i] = inverse * (dy[i] * weight[i] - x[i] * along) + residual[i];
        }
      } else {
        for (int64_t i = 0; i < n; ++i) dx[i] = inverse * (dy[i] * weight[i] - x[i] * along);
      }
    }
  }
};

// x, residual? (the operator has one), weight -> y, sum?
KernelFactory Forward(bool residual) {
  return ViaF32([residual](const KernelSpec& spec, std::string*) {
    const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
    return MakeKernel([residual, epsilon](const KernelArgs& args) {
      const int64_t n = args.inputs[0].dims().back();
      Operands operands = {args.inputs[0].as<float>(),
                           args.inputs[residual ? 2 : 1].as<float>(),
                           nullptr,
                           args.outputs[0].as<float>(),
                           nullptr,
                           n,
                           epsilon};
      if (residual) {
        operands.residual = args.inputs[1].as<float>();
        operands.sum = args.outputs[1].as<float>();
      }
      ParallelRanges(RowsOf(args.inputs[0].dims()), 2 * n, [&](int64_t begin, int64_t end) {
        simd::Dispatch<ForwardRows>(&operands, begin, end);
      });
      return KernelStatus::Ok();
    });
  });
}

// Threads share the columns, so that every sum runs over the rows in order.
void SumWeight(const float* x, const float* dy, const float* inverses, int64_t rows, int64_t n,
               float* dweight) {
  if (dweight == nullptr) return;
  ParallelRanges(n, 3 * rows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) dweight[i] = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const float* xr = x + row * n;
      const float* dyr = dy + row * n;
      const float inverse = inverses[row];
      for (int64_t i = begin; i < end; ++i) dweight[i] += dyr[i] * (xr[i] * inverse);
    }
  });
}

// x, weight, dy -> dx, dweight
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const float *x = args.inputs[0].as<float>(), *dy = args.inputs[2].as<float>();
        float* inverses = static_cast<float*>(args.workspace);
        const int64_t n = args.inputs[0].dims().back(), rows = RowsOf(args.inputs[0].dims());
        const Operands operands = {
            x, args.inputs[1].as<float>(), dy, args.outputs[0].as<float>(), inverses, n, epsilon};
        ParallelRanges(rows, 4 * n, [&](int64_t begin, int64_t end) {
          simd::Dispatch<BackwardRows>(&operands, begin, end);
        });
        SumWeight(x, dy, inverses, rows, n, args.outputs[1].as<float>());
        return KernelStatus::Ok();
      },
      RowsOf(spec.inputs[0].dims) * sizeof(float));
}

// weight, sum, dy?, dsum? -> dx, dresidual (alike), dweight
std::unique_ptr<Kernel> MakeResidualBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const float *sum = args.inputs[1].as<float>(), *dy = args.inputs[2].as<float>(),
                    *dsum = args.inputs[3].as<float>();
        float* inverses = static_cast<float*>(args.workspace);
        const int64_t n = args.inputs[1].dims().back(), rows = RowsOf(args.inputs[1].dims());
        const int64_t bytes = args.inputs[1].spec.bytes();
        float *dx = args.outputs[0].as<float>(), *dresidual = args.outputs[1].as<float>(),
              *dweight = args.outputs[2].as<float>();
        float* first = dx != nullptr ? dx : dresidual;
        if (dy == nullptr) {  // only the sum was used
          if (first != nullptr) CopyBytes(dsum, first, bytes);
          if (dweight != nullptr) std::fill_n(dweight, n, 0.0f);
        } else {
          Operands operands = {sum, args.inputs[0].as<float>(), dy, first, inverses, n, epsilon};
          operands.residual = dsum;
          ParallelRanges(rows, 4 * n, [&](int64_t begin, int64_t end) {
            simd::Dispatch<BackwardRows>(&operands, begin, end);
          });
          SumWeight(sum, dy, inverses, rows, n, dweight);
        }
        if (dx != nullptr && dresidual != nullptr) CopyBytes(dx, dresidual, bytes);
        return KernelStatus::Ok();
      },
      RowsOf(spec.inputs[1].dims) * sizeof(float));
}

}  // namespace

void RegisterRmsNormCpu(KernelRegistry& registry) {
  registry.Add("rms_norm", Forward(false));
  registry.Add("rms_norm_grad", ViaF32(MakeBackward));
  registry.Add("residual_rms_norm", Forward(true));
  registry.Add("residual_rms_norm_grad", ViaF32(MakeResidualBackward));
}

}  // namespace espalier
