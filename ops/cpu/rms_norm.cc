// RMS norm, optionally of x + residual (fused add). Batch-invariant: a row's result depends on that
// row alone.
#include <algorithm>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/layout/copy.h"
#include "ops/cpu/layout/rows.h"
#include "ops/cpu/simd/row_sums.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

struct Operands {
  const float* x;  // backward with a residual: the sum
  const float* weight;
  const float* dy;
  float* y;  // forward: y, backward: dx; may be null
  int64_t n;
  float epsilon;
  const float* residual = nullptr;  // added to x; backward: the gradient of the sum, added to dx
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

// Adds the rows to dweight[n], which may be null.
template <int W>
struct BackwardRows {
  static ESPALIER_INLINE void Run(const Operands* o, int64_t begin, int64_t end, float* dweight) {
    const int64_t n = o->n;
    const float* weight = o->weight;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = o->x + row * n;
      const float* dy = o->dy + row * n;
      const float inverse = InverseRms<W>(x, n, o->epsilon);
      if (dweight != nullptr) {
        for (int64_t i = 0; i < n; ++i) dweight[i] += dy[i] * (x[i] * inverse);
      }
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

// Number of blocks of rows with their own partial sums for dweight: a function of the shape alone.
constexpr int64_t kMaxBlocks = 64, kFewestRows = 4;

// Backward of all rows; `sums` holds n floats per block.
void Backward(const Operands& o, int64_t rows, float* dweight, float* sums) {
  const int64_t n = o.n;
  if (dweight == nullptr) {
    return ParallelRanges(rows, 4 * n, [&](int64_t begin, int64_t end) {
      simd::Dispatch<BackwardRows>(&o, begin, end, dweight);
    });
  }
  const int64_t block_rows = std::max(kFewestRows, (rows + kMaxBlocks - 1) / kMaxBlocks);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  ParallelRanges(blocks, 7 * block_rows * n, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* own = sums + block * n;
      std::fill_n(own, n, 0.0f);
      const int64_t first = block * block_rows;
      simd::Dispatch<BackwardRows>(&o, first, std::min(rows, first + block_rows), own);
    }
  });
  ParallelRanges(n, blocks / 4, [&](int64_t begin, int64_t end) {
    std::fill(dweight + begin, dweight + end, 0.0f);
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = begin; i < end; ++i) dweight[i] += sums[block * n + i];
    }
  });
}

size_t SumsBytes(int64_t rows, int64_t n) {
  return std::min(kMaxBlocks, (rows + kFewestRows - 1) / kFewestRows) * n * sizeof(float);
}

// x, weight, dy -> dx, dweight
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const float *x = args.inputs[0].as<float>(), *dy = args.inputs[2].as<float>();
        const int64_t n = args.inputs[0].dims().back(), rows = RowsOf(args.inputs[0].dims());
        const Operands operands = {
            x, args.inputs[1].as<float>(), dy, args.outputs[0].as<float>(), n, epsilon};
        Backward(operands, rows, args.outputs[1].as<float>(), static_cast<float*>(args.workspace));
        return KernelStatus::Ok();
      },
      SumsBytes(RowsOf(spec.inputs[0].dims), spec.inputs[0].dims.back()));
}

// weight, sum, dy?, dsum? -> dx, dresidual (alike), dweight
std::unique_ptr<Kernel> MakeResidualBackward(const KernelSpec& spec, std::string*) {
  const float epsilon = static_cast<float>(spec.attributes.Float("epsilon"));
  return MakeKernel(
      [epsilon](const KernelArgs& args) {
        const float *sum = args.inputs[1].as<float>(), *dy = args.inputs[2].as<float>(),
                    *dsum = args.inputs[3].as<float>();
        const int64_t n = args.inputs[1].dims().back(), rows = RowsOf(args.inputs[1].dims());
        const int64_t bytes = args.inputs[1].spec.bytes();
        float *dx = args.outputs[0].as<float>(), *dresidual = args.outputs[1].as<float>(),
              *dweight = args.outputs[2].as<float>();
        float* first = dx != nullptr ? dx : dresidual;
        if (dy == nullptr) {  // the graph uses only the sum
          if (first != nullptr) CopyBytes(dsum, first, bytes);
          if (dweight != nullptr) std::fill_n(dweight, n, 0.0f);
        } else {
          Operands operands = {sum, args.inputs[0].as<float>(), dy, first, n, epsilon};
          operands.residual = dsum;
          Backward(operands, rows, dweight, static_cast<float*>(args.workspace));
        }
        if (dx != nullptr && dresidual != nullptr) CopyBytes(dx, dresidual, bytes);
        return KernelStatus::Ok();
      },
      SumsBytes(RowsOf(spec.inputs[1].dims), spec.inputs[1].dims.back()));
}

}  // namespace

void RegisterRmsNormCpu(KernelRegistry& registry) {
  registry.Add("rms_norm", Forward(false));
  registry.Add("rms_norm_grad", ViaF32(MakeBackward));
  registry.Add("residual_rms_norm", Forward(true));
  registry.Add("residual_rms_norm_grad", ViaF32(MakeResidualBackward));
}

}  // namespace espalier
