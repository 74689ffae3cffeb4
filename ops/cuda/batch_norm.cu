// Batch normalization of [N, C, ...].
#include <cmath>
#include <string>
#include <vector>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_batch_norm {

struct Shape {
  int64_t channels = 0, spatial = 1, per_channel = 0;
  ReduceShape over_channel;

  explicit Shape(const Dims& dims) : channels(dims[1]) {
    for (size_t d = 2; d < dims.size(); ++d) spatial *= dims[d];
    per_channel = dims[0] * spatial;
    std::vector<bool> summed(dims.size(), true);
    summed[1] = false;
    over_channel = ReduceShape::Make(dims, summed);
  }
};

double CountOf(const Attributes& attributes, const Shape& s) {
  const int64_t count = attributes.Int("count");
  return static_cast<double>(count > 0 ? count : s.per_channel);
}

template <typename T>
struct Value {
  const T* x;
  __device__ float operator()(int64_t i) const { return ToFloat(x[i]); }
};

template <typename T>
struct SquaredValue {
  const T* x;
  __device__ float operator()(int64_t i) const {
    const float value = ToFloat(x[i]);
    return value * value;
  }
};

KernelStatus Stats(const KernelArgs& args, const Attributes& attributes) {
  const TensorView &x = args.inputs[0], &stats = args.outputs[0];
  const Shape s(x.dims());
  const double count = CountOf(attributes, s);
  const float factor = static_cast<float>(count > 0 ? 1.0 / count : 0.0);
  return DispatchFloat(x.dtype(), "batch_norm_stats", [&](auto type) {
    using T = typename decltype(type)::T;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Reduce(s.over_channel, Value<T>{x.as<T>()},
                                           StoreScaled<T>{stats.as<T>(), factor}, args.workspace,
                                           StreamOf(args), "batch_norm_stats"));
    return Reduce(s.over_channel, SquaredValue<T>{x.as<T>()},
                  StoreScaled<T>{stats.as<T>() + s.channels, factor}, args.workspace,
                  StreamOf(args), "batch_norm_stats");
  });
}

template <typename T>
struct StatsGradient {
  const T* x;
  const T* dstats;
  T* dx;
  int64_t channels, spatial;
  float count;
  __device__ void operator()(int64_t i) const {
    const int64_t c = i / spatial % channels;
    dx[i] = FromFloat<T>(
        (ToFloat(dstats[c]) + 2.0f * ToFloat(dstats[channels + c]) * ToFloat(x[i])) / count);
  }
};

// x, dstats -> dx = (dstats[0] + 2 x dstats[1]) / count
KernelStatus StatsBackward(const KernelArgs& args, const Attributes& attributes) {
  const TensorView &x = args.inputs[0], &dx = args.outputs[0];
  if (!dx.present()) return KernelStatus::Ok();
  const Shape s(x.dims());
  return DispatchFloat(x.dtype(), "batch_norm_stats_grad", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(dx.num_elements(),
                   StatsGradient<T>{x.as<T>(), args.inputs[1].as<T>(), dx.as<T>(), s.channels,
                                    s.spatial, static_cast<float>(CountOf(attributes, s))},
                   StreamOf(args), "batch_norm_stats_grad");
  });
}

// Mean and variance of a channel: from `stats`, or the running ones where it is null.
template <typename T>
struct Moments {
  const T* stats;
  const T* running_mean;
  const T* running_var;
  int64_t channels;
  float epsilon;

  __device__ float Mean(int64_t c) const { return ToFloat((stats ? stats : running_mean)[c]); }
  __device__ float Variance(int64_t c) const {
    if (stats == nullptr) return ToFloat(running_var[c]);
    const float mean = Mean(c);
    return fmaxf(ToFloat(stats[channels + c]) - mean * mean, 0.0f);
  }
  __device__ float Inverse(int64_t c) const { return 1.0f / sqrtf(Variance(c) + epsilon); }
};

// Clamps the result to [low, high]; keeps NaN.
struct Bounds {
  float low = -INFINITY, high = INFINITY;

  static Bounds Of(const Attributes& attributes) {
    const std::string activation = attributes.String("activation");
    if (activation == "none") return {};
    return {0.0f, activation == "relu6" ? 6.0f : INFINITY};
  }
  __device__ float Apply(float v) const {
    const float raised = v < low ? low : v;
    return raised > high ? high : raised;
  }
};

template <typename T>
struct Line {
  const T* x;
  const T* scale;
  const T* bias;
  Moments<T> moments;
  int64_t channels, spatial;
  __device__ float operator()(int64_t i) const {
    const int64_t c = i / spatial % channels;
    const float slope = ToFloat(scale[c]) * moments.Inverse(c);
    return (ToFloat(x[i]) - moments.Mean(c)) * slope + ToFloat(bias[c]);
  }
};

template <typename T>
struct Normalize {
  Line<T> line;
  const T* residual;  // may be null
  T* y;
  Bounds bounds;
  __device__ void operator()(int64_t i) const {
    const float v = line(i) + (residual == nullptr ? 0.0f : ToFloat(residual[i]));
    y[i] = FromFloat<T>(bounds.Apply(v));
  }
};

template <typename T>
struct MoveRunning {
  Moments<T> moments;
  T* running_mean;
  T* running_var;
  float momentum, unbias;
  __device__ void operator()(int64_t c) const {
    const float mean = moments.Mean(c), variance = moments.Variance(c) * unbias;
    running_mean[c] = FromFloat<T>((1.0f - momentum) * ToFloat(running_mean[c]) + momentum * mean);
    running_var[c] =
        FromFloat<T>((1.0f - momentum) * ToFloat(running_var[c]) + momentum * variance);
  }
};

KernelStatus Forward(const KernelArgs& args, const Attributes& attributes) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const Shape s(x.dims());
  const bool stats = args.training && Has(args.inputs, 5);
  if (args.training && !stats) {
    return KernelStatus::Error(
        "batch_norm: input 'stats' is missing, which training needs; expected the output of "
        "batch_norm_stats");
  }
  const double count = CountOf(attributes, s);
  const bool biased = attributes.Bool("biased_running_var");
  return DispatchFloat(x.dtype(), "batch_norm", [&](auto type) {
    using T = typename decltype(type)::T;
    T* running_mean = args.inputs[3].as<T>();
    T* running_var = args.inputs[4].as<T>();
    const Moments<T> moments{stats ? args.inputs[5].as<T>() : nullptr, running_mean, running_var,
                             s.channels, static_cast<float>(attributes.Float("epsilon"))};
    if (y.present()) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          ForEach(y.num_elements(),
                  Normalize<T>{{x.as<T>(), args.inputs[1].as<T>(), args.inputs[2].as<T>(), moments,
                                s.channels, s.spatial},
                               Has(args.inputs, 6) ? args.inputs[6].as<T>() : nullptr,
                               y.as<T>(),
                               Bounds::Of(attributes)},
                  StreamOf(args), "batch_norm"));
    }
    if (!stats) return KernelStatus::Ok();
    return ForEach(
        s.channels,
        MoveRunning<T>{moments, running_mean, running_var,
                       static_cast<float>(attributes.Float("momentum")),
                       static_cast<float>(count > 1 && !biased ? count / (count - 1) : 1)},
        StreamOf(args), "batch_norm");
  });
}

// dy where the fused activation passes it, else 0: relu decides by y, relu6 by its input.
template <typename T>
struct Counted {
  const T* dy;
  const T* y;  // null unless relu
  bool bounded;
  Line<T> line;
  Bounds bounds;
  __device__ float operator()(int64_t i) const {
    bool counts = true;
    if (y != nullptr) counts = ToFloat(y[i]) > 0.0f;
    if (bounded) {
      const float v = line(i);
      counts = v >= bounds.low && v <= bounds.high;
    }
    return counts ? ToFloat(dy[i]) : 0.0f;
  }
};

template <typename T>
struct AlongTerm {
  Counted<T> d;
  __device__ float operator()(int64_t i) const {
    const Line<T>& line = d.line;
    return d(i) * (ToFloat(line.x[i]) - line.moments.Mean(i / line.spatial % line.channels));
  }
};

// Either output may be null.
template <typename T>
struct DirectGradients {
  Counted<T> d;
  T* dx;
  T* dresidual;
  __device__ void operator()(int64_t i) const {
    const Line<T>& line = d.line;
    const int64_t c = i / line.spatial % line.channels;
    const float value = d(i);
    if (dresidual != nullptr) dresidual[i] = FromFloat<T>(value);
    if (dx != nullptr) {
      dx[i] = FromFloat<T>(value * ToFloat(line.scale[c]) * line.moments.Inverse(c));
    }
  }
};

// From the sums over a channel of dy and of dy * (x - mean). Outputs may be null.
template <typename T>
struct ChannelGradients {
  const float* sum;
  const float* along;
  const T* scale;
  T* dscale;
  T* dbias;
  T* dstats;
  Moments<T> moments;
  int64_t channels;
  __device__ void operator()(int64_t c) const {
    const float inverse = moments.Inverse(c);
    if (dscale != nullptr) dscale[c] = FromFloat<T>(along[c] * inverse);
    if (dbias != nullptr) dbias[c] = FromFloat<T>(sum[c]);
    if (dstats == nullptr) return;
    float dmean = 0, dvariance = 0;
    if (moments.stats != nullptr) {
      // variance = mean of squares - mean^2
      dvariance = -0.5f * ToFloat(scale[c]) * along[c] * inverse * inverse * inverse;
      dmean = -sum[c] * ToFloat(scale[c]) * inverse - 2.0f * moments.Mean(c) * dvariance;
    }
    dstats[c] = FromFloat<T>(dmean);
    dstats[channels + c] = FromFloat<T>(dvariance);
  }
};

struct BackwardLayout {
  WorkspaceLayout layout;
  size_t sum, along, partial;

  explicit BackwardLayout(const Shape& s) {
    sum = layout.Add(s.channels * sizeof(float));
    along = layout.Add(s.channels * sizeof(float));
    partial = layout.Add(s.over_channel.WorkspaceBytes());
  }
};

// x, scale, bias?, running_mean, running_var, stats?, y?, dy -> dx, dscale, dbias, dstats,
// dresidual. The path through the statistics to x is the gradient of batch_norm_stats, fed by
// dstats.
KernelStatus Backward(const KernelArgs& args, const Attributes& attributes) {
  const TensorView& x = args.inputs[0];
  const Shape s(x.dims());
  const BackwardLayout at(s);
  const char* op = "batch_norm_grad";
  const std::string activation = attributes.String("activation");
  return DispatchFloat(x.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    const auto input = [&](size_t i) {
      return Has(args.inputs, i) ? args.inputs[i].as<T>() : nullptr;
    };
    const auto output = [&](size_t i) {
      return Has(args.outputs, i) ? args.outputs[i].as<T>() : nullptr;
    };
    const Moments<T> moments{args.training ? input(5) : nullptr, input(3), input(4), s.channels,
                             static_cast<float>(attributes.Float("epsilon"))};
    const Counted<T> d{input(7),
                       activation == "relu" ? input(6) : nullptr,
                       activation == "relu6",
                       {x.as<T>(), input(1), input(2), moments, s.channels, s.spatial},
                       Bounds::Of(attributes)};
    if (output(0) != nullptr || output(4) != nullptr) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(
          x.num_elements(), DirectGradients<T>{d, output(0), output(4)}, StreamOf(args), op));
    }
    float* sum = WorkspaceAt<float>(args, at.sum);
    float* along = WorkspaceAt<float>(args, at.along);
    void* partial = WorkspaceAt(args, at.partial);
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        Reduce(s.over_channel, d, StoreScaled<float>{sum, 1.0f}, partial, StreamOf(args), op));
    ESPALIER_KERNEL_RETURN_IF_ERROR(Reduce(s.over_channel, AlongTerm<T>{d},
                                           StoreScaled<float>{along, 1.0f}, partial, StreamOf(args),
                                           op));
    return ForEach(s.channels,
                   ChannelGradients<T>{sum, along, input(1), output(1), output(2), output(3),
                                       moments, s.channels},
                   StreamOf(args), op);
  });
}

using RunFunction = KernelStatus (*)(const KernelArgs&, const Attributes&);

KernelFactory Factory(RunFunction run, size_t (*workspace)(const Shape&)) {
  return [run, workspace](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    return MakeKernel([run, attributes = spec.attributes](
                          const KernelArgs& args) { return run(args, attributes); },
                      workspace(Shape(spec.inputs[0].dims)));
  };
}

size_t NoWorkspace(const Shape&) { return 0; }
size_t StatsWorkspace(const Shape& s) { return s.over_channel.WorkspaceBytes(); }
size_t BackwardWorkspace(const Shape& s) { return BackwardLayout(s).layout.bytes(); }

}  // namespace cuda_batch_norm

void RegisterBatchNormCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_batch_norm;
  registry.Add("batch_norm_stats", Factory(Stats, StatsWorkspace));
  registry.Add("batch_norm_stats_grad", Factory(StatsBackward, NoWorkspace));
  registry.Add("batch_norm", Factory(Forward, NoWorkspace));
  registry.Add("batch_norm_grad", Factory(Backward, BackwardWorkspace));
}

}  // namespace espalier
