// Batch normalisation of [N, C, ...]. Threads share the channels; sums over a channel are in f64,
// in one order.
#include <cmath>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"

namespace espalier {
namespace {

struct Shape {
  int64_t batch, channels, spatial;
};

Shape ShapeOf(const Dims& dims) {
  Shape shape{dims[0], dims[1], 1};
  for (size_t d = 2; d < dims.size(); ++d) shape.spatial *= dims[d];
  return shape;
}

// Calls run(offset) for each run of `spatial` elements of a channel.
template <typename Run>
void ForEachRun(const Shape& s, int64_t channel, const Run& run) {
  for (int64_t n = 0; n < s.batch; ++n) run((n * s.channels + channel) * s.spatial);
}

template <typename Body>
void ForEachChannel(const Shape& s, const Body& body) {
  ParallelRanges(s.channels, 4 * s.batch * s.spatial, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) body(c);
  });
}

int64_t CountOf(const Attributes& attributes, const Shape& s) {
  const int64_t count = attributes.Int("count");
  return count > 0 ? count : s.batch * s.spatial;
}

std::unique_ptr<Kernel> MakeStats(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    const Shape s = ShapeOf(args.inputs[0].dims());
    const double count = static_cast<double>(CountOf(attributes, s));
    const float* x = args.inputs[0].as<float>();
    float* stats = args.outputs[0].as<float>();
    ForEachChannel(s, [&](int64_t c) {
      double sum = 0, squares = 0;
      ForEachRun(s, c, [&](int64_t at) {
        for (int64_t i = at; i < at + s.spatial; ++i) {
          const double value = x[i];
          sum += value;
          squares += value * value;
        }
      });
      stats[c] = static_cast<float>(count > 0 ? sum / count : 0);
      stats[s.channels + c] = static_cast<float>(count > 0 ? squares / count : 0);
    });
    return KernelStatus::Ok();
  });
}

// x, dstats -> dx = (dstats[0] + 2 x dstats[1]) / count
std::unique_ptr<Kernel> MakeStatsBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const Shape s = ShapeOf(args.inputs[0].dims());
    const float count = static_cast<float>(CountOf(attributes, s));
    const float* x = args.inputs[0].as<float>();
    const float* dstats = args.inputs[1].as<float>();
    float* dx = args.outputs[0].as<float>();
    ForEachChannel(s, [&](int64_t c) {
      const float constant = dstats[c] / count, slope = 2 * dstats[s.channels + c] / count;
      ForEachRun(s, c, [&](int64_t at) {
        for (int64_t i = at; i < at + s.spatial; ++i) dx[i] = slope * x[i] + constant;
      });
    });
    return KernelStatus::Ok();
  });
}

struct Moments {
  float mean, variance;
};

// `stats` null: the running values.
Moments MomentsOf(const float* stats, const float* running_mean, const float* running_var,
                  int64_t channels, int64_t c) {
  if (stats == nullptr) return {running_mean[c], running_var[c]};
  const float mean = stats[c];
  return {mean, std::max(stats[channels + c] - mean * mean, 0.0f)};
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    const Shape s = ShapeOf(args.inputs[0].dims());
    const float epsilon = static_cast<float>(attributes.Float("epsilon"));
    const float momentum = static_cast<float>(attributes.Float("momentum"));
    const double count = static_cast<double>(CountOf(attributes, s));
    const float unbias = static_cast<float>(count > 1 ? count / (count - 1) : 1);
    const float* x = args.inputs[0].as<float>();
    const float* scale = args.inputs[1].as<float>();
    const float* bias = args.inputs[2].as<float>();
    float* running_mean = args.inputs[3].as<float>();
    float* running_var = args.inputs[4].as<float>();
    const float* stats =
        args.training && args.inputs.size() > 5 ? args.inputs[5].as<float>() : nullptr;
    if (args.training && stats == nullptr) {
      return KernelStatus::Error(
          "batch_norm: input 'stats' is missing, which training needs; expected the output of "
          "batch_norm_stats");
    }
    float* y = args.outputs[0].as<float>();
    ForEachChannel(s, [&](int64_t c) {
      const Moments m = MomentsOf(stats, running_mean, running_var, s.channels, c);
      const float slope = scale[c] / std::sqrt(m.variance + epsilon);
      const float constant = bias[c] - m.mean * slope;
      if (y != nullptr) {
        ForEachRun(s, c, [&](int64_t at) {
          for (int64_t i = at; i < at + s.spatial; ++i) y[i] = x[i] * slope + constant;
        });
      }
      if (stats != nullptr) {
        running_mean[c] = (1 - momentum) * running_mean[c] + momentum * m.mean;
        running_var[c] = (1 - momentum) * running_var[c] + momentum * m.variance * unbias;
      }
    });
    return KernelStatus::Ok();
  });
}

// x, scale, running_mean, running_var, stats?, dy -> dx, dscale, dbias, dstats. The path through
// the statistics to x is the gradient of batch_norm_stats, fed by dstats.
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    const Shape s = ShapeOf(args.inputs[0].dims());
    const float epsilon = static_cast<float>(attributes.Float("epsilon"));
    const float* x = args.inputs[0].as<float>();
    const float* scale = args.inputs[1].as<float>();
    const float* stats = args.training ? args.inputs[4].as<float>() : nullptr;
    const float* dy = args.inputs[5].as<float>();
    const auto output = [&](size_t i) {
      return i < args.outputs.size() ? args.outputs[i].as<float>() : nullptr;
    };
    float *dx = output(0), *dscale = output(1), *dbias = output(2), *dstats = output(3);
    ForEachChannel(s, [&](int64_t c) {
      const Moments m =
          MomentsOf(stats, args.inputs[2].as<float>(), args.inputs[3].as<float>(), s.channels, c);
      const float inverse = 1.0f / std::sqrt(m.variance + epsilon);
      double sum = 0, along = 0;  // of dy, and of dy * (x - mean)
      ForEachRun(s, c, [&](int64_t at) {
        for (int64_t i = at; i < at + s.spatial; ++i) {
          sum += dy[i];
          along += static_cast<double>(dy[i]) * (x[i] - m.mean);
          if (dx != nullptr) dx[i] = dy[i] * scale[c] * inverse;
        }
      });
      if (dscale != nullptr) dscale[c] = static_cast<float>(along * inverse);
      if (dbias != nullptr) dbias[c] = static_cast<float>(sum);
      if (dstats == nullptr) return;
      // variance = mean of squares - mean^2
      const double dvariance =
          stats == nullptr ? 0 : -0.5 * scale[c] * along * inverse * inverse * inverse;
      const double dmean =
          stats == nullptr ? 0 : -sum * scale[c] * inverse - 2 * m.mean * dvariance;
      dstats[c] = static_cast<float>(dmean);
      dstats[s.channels + c] = static_cast<float>(dvariance);
    });
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterBatchNormCpu(KernelRegistry& registry) {
  registry.Add("batch_norm_stats", ViaF32(MakeStats));
  registry.Add("batch_norm_stats_grad", ViaF32(MakeStatsBackward));
  registry.Add("batch_norm", ViaF32(MakeForward, {3, 4}));
  registry.Add("batch_norm_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
