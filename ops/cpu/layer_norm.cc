// Layer norm, optionally of x + residual (fused add). Batch-invariant: a row's result depends on
// that row alone.
#include <algorithm>
#include <cmath>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/layout/copy.h"
#include "ops/cpu/layout/rows.h"
#include "ops/cpu/simd/row_sums.h"
#include "ops/cpu/threading/parallel.h"

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
  int64_t n;
  float epsilon;
  const float* residual = nullptr;  // added to x; backward: the gradient of the sum, added to dx
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

// With g = dy * scale and h = (x - mean) / sd: dx = (g - mean(g) - h * mean(g * h)) / sd.
template <int W>
ESPALIER_INLINE void InputGradient(const float* x, const float* dy, const float* scale,
                                   const float* residual, Moments m, int64_t n, float* dx) {
  const float size = static_cast<float>(n);
  simd::Float<W> sums[2] = {}, alongs[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      simd::Float<W> g = simd::Load<W>(dy + i + p * W);
      if (scale != nullptr) g *= simd::Load<W>(scale + i + p * W);
      sums[p] += g;
      alongs[p] = g * (simd::Load<W>(x + i + p * W) - m.mean) + alongs[p];
    }
  }
  float sum = simd::Sum<W>(sums[0] + sums[1]), along = simd::Sum<W>(alongs[0] + alongs[1]);
  for (; i < n; ++i) {
    const float g = scale != nullptr ? dy[i] * scale[i] : dy[i];
    sum += g;
    along += g * (x[i] - m.mean);
  }
  const float mean = sum / size, slope = along * m.inverse * m.inverse / size;
  if (scale != nullptr) {
    for (i = 0; i < n; ++i) {
      dx[i] = m.inverse * (dy[i] * scale[i] - mean - (x[i] - m.mean) * slope);
    }
  } else {
    for (i = 0; i < n; ++i) dx[i] = m.inverse * (dy[i] - mean - (x[i] - m.mean) * slope);
  }
  if (residual != nullptr) {
    for (i = 0; i < n; ++i) dx[i] += residual[i];
  }
}

// Adds the rows to dscale[n] and dbias[n], which may be null.
template <int W>
struct BackwardRows {
  static ESPALIER_INLINE void Run(const Operands* o, int64_t begin, int64_t end, float* dscale,
                                  float* dbias) {
    const int64_t n = o->n;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = o->x + row * n;
      const float* dy = o->dy + row * n;
      const Moments m = MomentsOf<W>(x, n, o->epsilon);
      if (o->y != nullptr) {
        const float* residual = o->residual == nullptr ? nullptr : o->residual + row * n;
        InputGradient<W>(x, dy, o->scale, residual, m, n, o->y + row * n);
      }
      if (dscale != nullptr) {
        for (int64_t i = 0; i < n; ++i) dscale[i] += dy[i] * ((x[i] - m.mean) * m.inverse);
      }
      if (dbias != nullptr) {
        for (int64_t i = 0; i < n; ++i) dbias[i] += dy[i];
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
      Operands operands = {InputAt(args, 0), InputAt(args, first), InputAt(args, first + 1),
                           nullptr,          OutputAt(args, 0),    n,
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

// to[i] = sum over blocks of from[block * stride + i], in order.
void AddBlocks(const float* from, int64_t stride, int64_t blocks, int64_t n, float* to) {
  if (to == nullptr) return;
  ParallelRanges(n, blocks / 4, [&](int64_t begin, int64_t end) {
    std::fill(to + begin, to + end, 0.0f);
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = begin; i < end; ++i) to[i] += from[block * stride + i];
    }
  });
}

// Number of blocks of rows with their own partial sums for dscale and dbias: a function of the
// shape alone.
constexpr int64_t kMaxBlocks = 64, kFewestRows = 4;

// Backward of all rows; `sums` holds n floats for dscale and n for dbias per block.
void Backward(const Operands& o, int64_t rows, float* dscale, float* dbias, float* sums) {
  const int64_t n = o.n;
  if (dscale == nullptr && dbias == nullptr) {
    return ParallelRanges(rows, 8 * n, [&](int64_t begin, int64_t end) {
      simd::Dispatch<BackwardRows>(&o, begin, end, dscale, dbias);
    });
  }
  const int64_t block_rows = std::max(kFewestRows, (rows + kMaxBlocks - 1) / kMaxBlocks);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  ParallelRanges(blocks, 12 * block_rows * n, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* own = sums + block * 2 * n;
      std::fill_n(own, 2 * n, 0.0f);
      simd::Dispatch<BackwardRows>(&o, block * block_rows, std::min(rows, (block + 1) * block_rows),
                                   dscale == nullptr ? nullptr : own,
                                   dbias == nullptr ? nullptr : own + n);
    }
  });
  AddBlocks(sums, 2 * n, blocks, n, dscale);
  AddBlocks(sums + n, 2 * n, blocks, n, dbias);
}

size_t SumsBytes(int64_t rows, int64_t n) {
  return std::min(kMaxBlocks, (rows + kFewestRows - 1) / kFewestRows) * 2 * n * sizeof(float);
}

// x, scale?, dy -> dx, dscale, dbias
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const float *x = InputAt(args, 0), *dy = InputAt(args, 2);
        const int64_t n = args.inputs[0].dims().back(), rows = RowsOf(args.inputs[0].dims());
        const Operands operands = {x, InputAt(args, 1), nullptr, dy, OutputAt(args, 0), n, epsilon};
        Backward(operands, rows, OutputAt(args, 1), OutputAt(args, 2),
                 static_cast<float*>(args.workspace));
        return KernelStatus::Ok();
      },
      SumsBytes(RowsOf(spec.inputs[0].dims), spec.inputs[0].dims.back()));
}

// scale?, sum, dy?, dsum? -> dx, dresidual (alike), dscale, dbias
std::unique_ptr<Kernel> MakeResidualBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const float *sum = InputAt(args, 1), *dy = InputAt(args, 2), *dsum = InputAt(args, 3);
        const int64_t n = args.inputs[1].dims().back(), rows = RowsOf(args.inputs[1].dims());
        const int64_t bytes = args.inputs[1].spec.bytes();
        float *dx = OutputAt(args, 0), *dresidual = OutputAt(args, 1);
        float* first = dx != nullptr ? dx : dresidual;
        if (dy == nullptr) {  // the graph uses only the sum
          if (first != nullptr) CopyBytes(dsum, first, bytes);
          for (size_t i = 2; i < args.outputs.size(); ++i) {
            if (OutputAt(args, i) != nullptr) std::fill_n(OutputAt(args, i), n, 0.0f);
          }
        } else {
          Operands operands = {sum, InputAt(args, 0), nullptr, dy, first, n, epsilon};
          operands.residual = dsum;
          Backward(operands, rows, OutputAt(args, 2), OutputAt(args, 3),
                   static_cast<float*>(args.workspace));
        }
        if (dx != nullptr && dresidual != nullptr) CopyBytes(dx, dresidual, bytes);
        return KernelStatus::Ok();
      },
      SumsBytes(RowsOf(spec.inputs[1].dims), spec.inputs[1].dims.back()));
}

}  // namespace

void RegisterLayerNormCpu(KernelRegistry& registry) {
  registry.Add("layer_norm", Forward(false));
  registry.Add("layer_norm_grad", ViaF32(MakeBackward));
  registry.Add("residual_layer_norm", Forward(true));
  registry.Add("residual_layer_norm_grad", ViaF32(MakeResidualBackward));
}

}  // namespace espalier
