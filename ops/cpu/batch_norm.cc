// Batch normalization of [N, C, ...].
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/cpu/batch_norm/affine_map.h"
#include "ops/cpu/batch_norm/channel_sums.h"
#include "ops/cpu/dtype/convert.h"

namespace espalier {
namespace batch_norm {
namespace {

int64_t CountOf(const Attributes& attributes, const Shape& s) {
  const int64_t count = attributes.Int("count");
  return count > 0 ? count : s.elements();
}

std::unique_ptr<Kernel> MakeStats(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    const Shape s = ShapeOf(args.inputs[0].dims());
    const int64_t count = CountOf(attributes, s);
    const float* x = args.inputs[0].as<float>();
    float* stats = args.outputs[0].as<float>();
    SumChannels(
        s, {x, x}, Mask::kNone, [](int64_t) { return Line(); },
        [&](int64_t c, const Sums& sums) {
          const double share = 1 / static_cast<double>(std::max<int64_t>(1, count));
          const double mean = sums.plain * share;
          const float rounded = static_cast<float>(mean);
          double squares = sums.along * share;
          // The rounding of the stored mean would be an error of the variance, so it is corrected.
          // Not for a part of the batch: the mean of the whole batch is not known yet.
          if (count == s.elements()) {
            squares += static_cast<double>(rounded) * rounded - mean * mean;
          }
          stats[c] = rounded;
          stats[s.channels + c] = static_cast<float>(squares);
        });
    return KernelStatus::Ok();
  });
}

// x, dstats -> dx = (dstats[0] + 2 x dstats[1]) / count
std::unique_ptr<Kernel> MakeStatsBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const Shape s = ShapeOf(args.inputs[0].dims());
    const double share = 1 / static_cast<double>(std::max<int64_t>(1, CountOf(attributes, s)));
    const float* x = args.inputs[0].as<float>();
    const float* dstats = args.inputs[1].as<float>();
    float* dx = args.outputs[0].as<float>();
    Map(s, {x, dx}, [&](int64_t c) {
      return Affine{0, static_cast<float>(2 * dstats[s.channels + c] * share),
                    static_cast<float>(dstats[c] * share)};
    });
    return KernelStatus::Ok();
  });
}

struct Moments {
  float mean;
  double variance;
};

// `stats` null: uses the running statistics.
Moments MomentsOf(const float* stats, const float* running_mean, const float* running_var,
                  int64_t channels, int64_t c) {
  if (stats == nullptr) return {running_mean[c], running_var[c]};
  const double mean = stats[c];
  return {stats[c], std::max(stats[channels + c] - mean * mean, 0.0)};
}

Bounds BoundsOf(const Attributes& attributes) {
  const std::string activation = attributes.String("activation");
  Bounds bounds;
  if (activation != "none") bounds.low = 0;
  if (activation == "relu6") bounds.high = 6;
  return bounds;
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes,
                     bounds = BoundsOf(spec.attributes)](const KernelArgs& args) {
    const Shape s = ShapeOf(args.inputs[0].dims());
    const double epsilon = attributes.Float("epsilon");
    const float momentum = static_cast<float>(attributes.Float("momentum"));
    const double count = static_cast<double>(CountOf(attributes, s));
    const bool biased = attributes.Bool("biased_running_var");
    const float unbias = static_cast<float>(count > 1 && !biased ? count / (count - 1) : 1);
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
    if (y != nullptr) {
      std::vector<Affine> affine(s.channels);
      for (int64_t c = 0; c < s.channels; ++c) {
        const Moments m = MomentsOf(stats, running_mean, running_var, s.channels, c);
        affine[c] = {m.mean, static_cast<float>(scale[c] / std::sqrt(m.variance + epsilon)),
                     bias[c]};
      }
      const float* residual = args.inputs.size() > 6 ? args.inputs[6].as<float>() : nullptr;
      Map(s, {x, y, residual, bounds}, [&](int64_t c) { return affine[c]; });
    }
    if (stats != nullptr) {
      for (int64_t c = 0; c < s.channels; ++c) {
        const Moments m = MomentsOf(stats, running_mean, running_var, s.channels, c);
        running_mean[c] = (1 - momentum) * running_mean[c] + momentum * m.mean;
        running_var[c] =
            (1 - momentum) * running_var[c] + momentum * static_cast<float>(m.variance) * unbias;
      }
    }
    return KernelStatus::Ok();
  });
}

// x, scale, bias?, running_mean, running_var, stats?, y?, dy -> dx, dscale, dbias, dstats,
// dresidual. The path through the statistics to x is the gradient of batch_norm_stats, fed by
// dstats.
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const Bounds bounds = BoundsOf(spec.attributes);
  const std::string activation = spec.attributes.String("activation");
  const Mask mask = activation == "relu"    ? Mask::kOutput
                    : activation == "relu6" ? Mask::kInput
                                            : Mask::kNone;
  return MakeKernel([attributes = spec.attributes, bounds, mask](const KernelArgs& args) {
    const Shape s = ShapeOf(args.inputs[0].dims());
    const double epsilon = attributes.Float("epsilon");
    const float* x = args.inputs[0].as<float>();
    const float* scale = args.inputs[1].as<float>();
    const float* bias = args.inputs[2].as<float>();
    const float* stats = args.training ? args.inputs[5].as<float>() : nullptr;
    const float* dy = args.inputs[7].as<float>();
    const auto output = [&](size_t i) {
      return i < args.outputs.size() ? args.outputs[i].as<float>() : nullptr;
    };
    float *dx = output(0), *dscale = output(1), *dbias = output(2), *dstats = output(3);
    std::vector<double> inverses(s.channels);
    std::vector<Line> lines(s.channels);
    for (int64_t c = 0; c < s.channels; ++c) {
      const Moments m =
          MomentsOf(stats, args.inputs[3].as<float>(), args.inputs[4].as<float>(), s.channels, c);
      const double deviation = std::sqrt(m.variance + epsilon);
      inverses[c] = 1 / deviation;
      lines[c] = {m.mean, static_cast<float>(scale[c] / deviation),
                  mask == Mask::kInput ? bias[c] : 0.0f};
    }
    SumChannels(
        s, {x, dy, dx, args.inputs[6].as<float>(), output(4), bounds}, mask,
        [&](int64_t c) { return lines[c]; },
        [&](int64_t c, const Sums& sums) {
          const double inverse = inverses[c];
          if (dscale != nullptr) dscale[c] = static_cast<float>(sums.along * inverse);
          if (dbias != nullptr) dbias[c] = static_cast<float>(sums.plain);
          if (dstats == nullptr) return;
          if (stats == nullptr) {
            dstats[c] = dstats[s.channels + c] = 0;
            return;
          }
          // variance = mean of squares - mean^2. dmean uses the rounded dvariance, so that both
          // cancel in batch_norm_stats_grad.
          const float dvariance =
              static_cast<float>(-0.5 * scale[c] * sums.along * inverse * inverse * inverse);
          dstats[c] = static_cast<float>(-sums.plain * scale[c] * inverse -
                                         2.0 * lines[c].mean * dvariance);
          dstats[s.channels + c] = dvariance;
        });
    return KernelStatus::Ok();
  });
}

}  // namespace
}  // namespace batch_norm

void RegisterBatchNormCpu(KernelRegistry& registry) {
  using namespace batch_norm;
  registry.Add("batch_norm_stats", ViaF32(MakeStats));
  registry.Add("batch_norm_stats_grad", ViaF32(MakeStatsBackward));
  registry.Add("batch_norm", ViaF32(MakeForward, {3, 4}));
  registry.Add("batch_norm_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
