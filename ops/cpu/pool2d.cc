// Pooling over NCHW planes, with PyTorch's rules for ties, borders and divisors.
#include <algorithm>
#include <cmath>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"

namespace espalier {
namespace {

struct Problem {
  bool max, include_pad;
  std::vector<int64_t> kernel, strides, pads;
};

Problem Describe(const Attributes& a) {
  return {a.String("kind") == "max", a.Bool("count_include_pad"), a.Ints("kernel"),
          a.Ints("strides"), a.Ints("pads")};
}

struct Window {
  int64_t top, bottom, left, right;  // inside the image
  int64_t cells;                     // the average's divisor
};

Window WindowAt(const Problem& p, const Dims& x, int64_t i, int64_t j) {
  const int64_t height = x[2], width = x[3];
  const int64_t top = i * p.strides[0] - p.pads[0], left = j * p.strides[1] - p.pads[1];
  Window w;
  w.top = std::max<int64_t>(top, 0);
  w.left = std::max<int64_t>(left, 0);
  w.bottom = std::min(top + p.kernel[0], height);
  w.right = std::min(left + p.kernel[1], width);
  if (p.include_pad) {  // what ceil_mode adds beyond the pads does not count
    w.cells = (std::min(top + p.kernel[0], height + p.pads[2]) - top) *
              (std::min(left + p.kernel[1], width + p.pads[3]) - left);
  } else {
    w.cells = (w.bottom - w.top) * (w.right - w.left);
  }
  return w;
}

// Index of the first maximum in row-major order; a NaN wins.
int64_t ArgMax(const float* plane, int64_t width, const Window& w) {
  int64_t best = w.top * width + w.left;
  for (int64_t r = w.top; r < w.bottom; ++r) {
    for (int64_t c = w.left; c < w.right; ++c) {
      const float value = plane[r * width + c];
      if (value > plane[best] || std::isnan(value)) best = r * width + c;
    }
  }
  return best;
}

float Sum(const float* plane, int64_t width, const Window& w) {
  float sum = 0;
  for (int64_t r = w.top; r < w.bottom; ++r) {
    for (int64_t c = w.left; c < w.right; ++c) sum += plane[r * width + c];
  }
  return sum;
}

int64_t WorkPerPlane(const Problem& p, const Dims& y) {
  return 2 * y[2] * y[3] * p.kernel[0] * p.kernel[1];
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([p = Describe(spec.attributes)](const KernelArgs& args) {
    const Dims& x = args.inputs[0].dims();
    const Dims& y = args.outputs[0].dims();
    ParallelRanges(x[0] * x[1], WorkPerPlane(p, y), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const float* in = args.inputs[0].as<float>() + plane * x[2] * x[3];
        float* out = args.outputs[0].as<float>() + plane * y[2] * y[3];
        for (int64_t i = 0; i < y[2]; ++i) {
          for (int64_t j = 0; j < y[3]; ++j) {
            const Window w = WindowAt(p, x, i, j);
            *out++ =
                p.max ? in[ArgMax(in, x[3], w)] : Sum(in, x[3], w) / static_cast<float>(w.cells);
          }
        }
      }
    });
    return KernelStatus::Ok();
  });
}

// x, dy -> dx
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([p = Describe(spec.attributes)](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const Dims& x = args.inputs[0].dims();
    const Dims& y = args.inputs[1].dims();
    ParallelRanges(x[0] * x[1], WorkPerPlane(p, y), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const float* in = args.inputs[0].as<float>() + plane * x[2] * x[3];
        const float* dy = args.inputs[1].as<float>() + plane * y[2] * y[3];
        float* dx = args.outputs[0].as<float>() + plane * x[2] * x[3];
        std::fill(dx, dx + x[2] * x[3], 0.0f);
        for (int64_t i = 0; i < y[2]; ++i) {
          for (int64_t j = 0; j < y[3]; ++j) {
            const Window w = WindowAt(p, x, i, j);
            if (p.max) {
              dx[ArgMax(in, x[3], w)] += *dy++;
              continue;
            }
            const float part = *dy++ / static_cast<float>(w.cells);
            for (int64_t r = w.top; r < w.bottom; ++r) {
              for (int64_t c = w.left; c < w.right; ++c) dx[r * x[3] + c] += part;
            }
          }
        }
      }
    });
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterPool2dCpu(KernelRegistry& registry) {
  registry.Add("pool2d", ViaF32(MakeForward));
  registry.Add("pool2d_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
