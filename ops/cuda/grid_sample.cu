// Sampling at the points of a grid. The gradient of x is a scatter: the taps of each sample are
// sorted by target and summed in order.
#include "ops/cuda/labels.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/scatter_rows.h"
#include "ops/kernel/grid_sample_taps.h"

namespace espalier {
namespace cuda_grid_sample {

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

int TapsPerPoint(const GridSampling& s) {
  return s.mode == GridMode::kNearest ? 1 : s.mode == GridMode::kBilinear ? 4 : 16;
}

// One point of one sample, for all channels.
template <typename T>
struct Forward {
  GridSampling s;
  int64_t channels, points;
  const T* x;
  const T* grid;
  T* y;
  __device__ void operator()(int64_t i) const {
    GridTaps taps;
    MakeGridTaps(s, ToFloat(grid[2 * i]), ToFloat(grid[2 * i + 1]), &taps);
    const int64_t n = i / points, point = i % points, area = s.height * s.width;
    for (int64_t c = n * channels; c < (n + 1) * channels; ++c) {
      float sum = 0;
      for (int k = 0; k < taps.count; ++k) {
        if (taps.index[k] >= 0) sum += taps.weight[k] * ToFloat(x[c * area + taps.index[k]]);
      }
      y[c * points + point] = FromFloat<T>(sum);
    }
  }
};

template <typename T>
struct GridGradient {
  GridSampling s;
  int64_t channels, points;
  const T* x;
  const T* grid;
  const T* dy;
  T* dgrid;
  __device__ void operator()(int64_t i) const {
    GridTaps taps;
    MakeGridTaps(s, ToFloat(grid[2 * i]), ToFloat(grid[2 * i + 1]), &taps);
    const int64_t n = i / points, point = i % points, area = s.height * s.width;
    float horizontal = 0, vertical = 0;
    for (int64_t c = n * channels; c < (n + 1) * channels; ++c) {
      const float gradient = ToFloat(dy[c * points + point]);
      for (int k = 0; k < taps.count; ++k) {
        if (taps.index[k] < 0) continue;
        const float along = gradient * ToFloat(x[c * area + taps.index[k]]);
        horizontal += along * taps.dx[k];
        vertical += along * taps.dy[k];
      }
    }
    dgrid[2 * i] = FromFloat<T>(horizontal);
    dgrid[2 * i + 1] = FromFloat<T>(vertical);
  }
};

// The taps of the points of one sample, laid out for a scatter.
template <typename T>
struct SpreadTaps {
  GridSampling s;
  const T* grid;
  int per_point;
  int64_t* indices;
  float* weights;
  __device__ void operator()(int64_t i) const {
    GridTaps taps;
    MakeGridTaps(s, ToFloat(grid[2 * i]), ToFloat(grid[2 * i + 1]), &taps);
    for (int k = 0; k < per_point; ++k) {
      indices[i * per_point + k] = taps.index[k];
      weights[i * per_point + k] = taps.weight[k];
    }
  }
};

KernelStatus RunForward(const KernelArgs& args, const Attributes& a) {
  const TensorView &x = args.inputs[0], &grid = args.inputs[1], &y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  const int64_t points = grid.dims()[1] * grid.dims()[2];
  return DispatchFloat(x.dtype(), "grid_sample", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(
        x.dims()[0] * points,
        Forward<T>{Describe(a, x.dims()), x.dims()[1], points, x.as<T>(), grid.as<T>(), y.as<T>()},
        StreamOf(args), "grid_sample");
  });
}

// x, grid, dy -> dx, dgrid
class Backward : public Kernel {
 public:
  static std::unique_ptr<Kernel> Make(DeviceContexts& contexts, const KernelSpec& spec,
                                      std::string* refusal) {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    auto kernel = std::make_unique<Backward>(contexts, spec);
    kernel->scatter_ =
        RowScatter::Make(kernel->taps_, kernel->s_.height * kernel->s_.width, refusal);
    if (kernel->scatter_ == nullptr) return nullptr;
    kernel->layout_.Add(kernel->scatter_->workspace_bytes());
    kernel->indices_at_ = kernel->layout_.Add(kernel->taps_ * sizeof(int64_t));
    kernel->weights_at_ = kernel->layout_.Add(kernel->taps_ * sizeof(float));
    return kernel;
  }

  Backward(DeviceContexts& contexts, const KernelSpec& spec)
      : contexts_(contexts),
        s_(Describe(spec.attributes, spec.inputs[0].dims)),
        points_(spec.inputs[1].dims[1] * spec.inputs[1].dims[2]),
        taps_(points_ * TapsPerPoint(s_)) {}

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    const TensorView &x = args.inputs[0], &grid = args.inputs[1], &dy = args.inputs[2];
    if (Has(args.outputs, 0)) {
      for (int64_t n = 0; n < x.dims()[0]; ++n) {
        ESPALIER_KERNEL_RETURN_IF_ERROR(SampleGradient(args, n));
      }
    }
    if (!Has(args.outputs, 1)) return KernelStatus::Ok();
    return DispatchFloat(x.dtype(), "grid_sample_grad", [&](auto type) {
      using T = typename decltype(type)::T;
      return ForEach(x.dims()[0] * points_,
                     GridGradient<T>{s_, x.dims()[1], points_, x.as<T>(), grid.as<T>(), dy.as<T>(),
                                     args.outputs[1].as<T>()},
                     StreamOf(args), "grid_sample_grad");
    });
  }

 private:
  // dx of sample n: [channels, area], gathered from dy [channels, points].
  KernelStatus SampleGradient(const KernelArgs& args, int64_t n) const {
    const TensorView &grid = args.inputs[1], &dy = args.inputs[2], &dx = args.outputs[0];
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.Current(&context));
    int64_t* indices = WorkspaceAt<int64_t>(args, indices_at_);
    float* weights = WorkspaceAt<float>(args, weights_at_);
    const int64_t channels = dx.dims()[1], area = s_.height * s_.width;
    const int64_t size = static_cast<int64_t>(SizeOf(dx.dtype()));
    const int per_point = TapsPerPoint(s_);
    ESPALIER_KERNEL_RETURN_IF_ERROR(DispatchFloat(dx.dtype(), "grid_sample_grad", [&](auto type) {
      using T = typename decltype(type)::T;
      return ForEach(points_,
                     SpreadTaps<T>{s_, grid.as<T>() + n * points_ * 2, per_point, indices, weights},
                     StreamOf(args), "grid_sample_grad");
    }));
    ScatterProblem problem;
    problem.indices.wide = indices;
    problem.count = taps_;
    problem.outer = channels;
    problem.repeat = per_point;
    problem.weights = weights;
    problem.rows = problem.limit = area;
    problem.skips = true;
    TensorView from = dy, to = dx;
    from.data = dy.as<char>() + n * channels * points_ * size;
    to.data = dx.as<char>() + n * channels * area * size;
    from.spec.dims = {channels, points_};
    to.spec.dims = {channels, area};
    return scatter_->Run(problem, from, to, context->faults(), args);
  }

  DeviceContexts& contexts_;
  GridSampling s_;
  int64_t points_, taps_;
  std::shared_ptr<RowScatter> scatter_;
  WorkspaceLayout layout_;
  size_t indices_at_ = 0, weights_at_ = 0;
};

}  // namespace cuda_grid_sample

void RegisterGridSampleCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_grid_sample;
  registry.Add("grid_sample",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
                 return MakeKernel(
                     [a = spec.attributes](const KernelArgs& args) { return RunForward(args, a); });
               });
  registry.Add("grid_sample_grad", [&contexts](const KernelSpec& spec, std::string* refusal) {
    return Backward::Make(contexts, spec, refusal);
  });
}

}  // namespace espalier
