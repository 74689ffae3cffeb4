// Softmax along any axis. Each line is computed in one order: its bits do not depend on the others.
#include <cmath>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"

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

template <int W>
struct Contiguous {
  static ESPALIER_INLINE void Run(const float* x, float* y, int64_t lines, int64_t n) {
    using namespace simd;
    const float lowest = -__builtin_inff();
    const int64_t whole = n / W * W;
    for (int64_t line = 0; line < lines; ++line, x += n, y += n) {
      Float<W> top = Splat<W>(lowest);
      for (int64_t i = 0; i < whole; i += W) top = Max<W>(top, Load<W>(x + i));
      if (whole < n) top = Max<W>(top, LoadPartial<W>(x + whole, n - whole, lowest));
      const float max = MaxLane<W>(top);
      Float<W> sum = {};
      for (int64_t i = 0; i < whole; i += W) {
        const Float<W> e = Exp<W>(Load<W>(x + i) - max);
        Store<W>(y + i, e);
        sum += e;
      }
      if (whole < n) {
        const Float<W> e = Exp<W>(LoadPartial<W>(x + whole, n - whole, lowest) - max);
        StorePartial<W>(y + whole, e, n - whole);
        sum += e;
      }
      const float scale = 1.0f / Sum<W>(sum);
      for (int64_t i = 0; i < n; ++i) y[i] *= scale;
    }
  }
};

void Strided(const float* x, float* y, int64_t n, int64_t stride) {
  float max = -INFINITY;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, x[i * stride]);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += y[i * stride] = std::exp(x[i * stride] - max);
  for (int64_t i = 0; i < n; ++i) y[i * stride] /= sum;
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([axis = spec.attributes.Int("axis", -1)](const KernelArgs& args) {
    const Lines lines = LinesOf(args.inputs[0].dims(), axis);
    const float* x = args.inputs[0].as<float>();
    float* y = args.outputs[0].as<float>();
    if (lines.length == 0) return KernelStatus::Ok();
    ParallelRanges(lines.outer * lines.inner, 8 * lines.length, [&](int64_t begin, int64_t end) {
      if (lines.inner == 1) {
        simd::Dispatch<Contiguous>(x + begin * lines.length, y + begin * lines.length, end - begin,
                                   lines.length);
        return;
      }
      for (int64_t line = begin; line < end; ++line) {
        const int64_t start = line / lines.inner * lines.length * lines.inner + line % lines.inner;
        Strided(x + start, y + start, lines.length, lines.inner);
      }
    });
    return KernelStatus::Ok();
  });
}

// y, dy -> dx = y * (dy - sum(y * dy))
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([axis = spec.attributes.Int("axis", -1)](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const Lines lines = LinesOf(args.inputs[0].dims(), axis);
    const float* y = args.inputs[0].as<float>();
    const float* dy = args.inputs[1].as<float>();
    float* dx = args.outputs[0].as<float>();
    ParallelRanges(lines.outer * lines.inner, 4 * lines.length, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t start = line / lines.inner * lines.length * lines.inner + line % lines.inner;
        float dot = 0;
        for (int64_t i = 0; i < lines.length; ++i) {
          dot += y[start + i * lines.inner] * dy[start + i * lines.inner];
        }
        for (int64_t i = 0; i < lines.length; ++i) {
          const int64_t at = start + i * lines.inner;
          dx[at] = y[at] * (dy[at] - dot);
        }
      }
    });
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterSoftmaxCpu(KernelRegistry& registry) {
  registry.Add("softmax", ViaF32(MakeForward));
  registry.Add("softmax_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
