// Sampling at the points of a grid: computes the taps of every point once for all channels.
#include <algorithm>
#include <string>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"
#include "ops/kernel/grid_sample_taps.h"

namespace espalier {
namespace {

GridSampling Describe(const Attributes& a, const Dims& x) {
  const std::string mode = a.String("mode"), padding = a.String("padding");
  return {mode == "nearest"   ? GridMode::kNearest
          : mode == "bicubic" ? GridMode::kBicubic
                              : GridMode::kBilinear,
          padding == "border"       ? GridPadding::kBorder
          : padding == "reflection" ? GridPadding::kReflection
                                    : GridPadding::kZeros,
          a.Bool("align_corners"), x[2], x[3]};
}

// Taps of all points of one sample.
void MakeTaps(const GridSampling& s, const float* grid, int64_t points, GridTaps* taps) {
  ParallelRanges(points, 40, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) MakeGridTaps(s, grid[2 * i], grid[2 * i + 1], taps + i);
  });
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  const int64_t points = spec.inputs[1].dims[1] * spec.inputs[1].dims[2];
  return MakeKernel(
      [a = spec.attributes, points](const KernelArgs& args) {
        const Dims& dims = args.inputs[0].dims();
        const GridSampling s = Describe(a, dims);
        const int64_t channels = dims[1], area = s.height * s.width;
        GridTaps* taps = static_cast<GridTaps*>(args.workspace);
        for (int64_t n = 0; n < dims[0]; ++n) {
          MakeTaps(s, args.inputs[1].as<float>() + n * points * 2, points, taps);
          ParallelRanges(channels * points, 8, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const float* plane = args.inputs[0].as<float>() + (n * channels + i / points) * area;
              const GridTaps& t = taps[i % points];
              float sum = 0;
              for (int k = 0; k < t.count; ++k) {
                if (t.index[k] >= 0) sum += t.weight[k] * plane[t.index[k]];
              }
              args.outputs[0].as<float>()[n * channels * points + i] = sum;
            }
          });
        }
        return KernelStatus::Ok();
      },
      points * sizeof(GridTaps));
}

// x, grid, dy -> dx, dgrid
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const int64_t points = spec.inputs[1].dims[1] * spec.inputs[1].dims[2];
  return MakeKernel(
      [a = spec.attributes, points](const KernelArgs& args) {
        const Dims& dims = args.inputs[0].dims();
        const GridSampling s = Describe(a, dims);
        const int64_t channels = dims[1], area = s.height * s.width;
        GridTaps* taps = static_cast<GridTaps*>(args.workspace);
        for (int64_t n = 0; n < dims[0]; ++n) {
          MakeTaps(s, args.inputs[1].as<float>() + n * points * 2, points, taps);
          const float* x = args.inputs[0].as<float>() + n * channels * area;
          const float* dy = args.inputs[2].as<float>() + n * channels * points;
          if (args.outputs[0].present()) {
            float* dx = args.outputs[0].as<float>() + n * channels * area;
            ParallelRanges(channels, 8 * points + area, [&](int64_t begin, int64_t end) {
              std::fill(dx + begin * area, dx + end * area, 0.0f);
              for (int64_t c = begin; c < end; ++c) {
                for (int64_t i = 0; i < points; ++i) {
                  const GridTaps& t = taps[i];
                  for (int k = 0; k < t.count; ++k) {
                    if (t.index[k] < 0) continue;
                    dx[c * area + t.index[k]] += t.weight[k] * dy[c * points + i];
                  }
                }
              }
            });
          }
          if (!args.outputs[1].present()) continue;
          float* dgrid = args.outputs[1].as<float>() + n * points * 2;
          ParallelRanges(points, 16 * channels, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const GridTaps& t = taps[i];
              float horizontal = 0, vertical = 0;
              for (int64_t c = 0; c < channels; ++c) {
                for (int k = 0; k < t.count; ++k) {
                  if (t.index[k] < 0) continue;
                  const float along = dy[c * points + i] * x[c * area + t.index[k]];
                  horizontal += along * t.dx[k];
                  vertical += along * t.dy[k];
                }
              }
              dgrid[2 * i] = horizontal;
              dgrid[2 * i + 1] = vertical;
            }
          });
        }
        return KernelStatus::Ok();
      },
      points * sizeof(GridTaps));
}

}  // namespace

void RegisterGridSampleCpu(KernelRegistry& registry) {
  registry.Add("grid_sample", ViaF32(MakeForward));
  registry.Add("grid_sample_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
