// Group norm: the elements of a group are contiguous and form a row; each channel is one run of it.
#include <cmath>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/simd/row_sums.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"

namespace espalier {
namespace {

struct Moments {
  float mean, inverse;  // 1 / standard deviation
};

// The sums over one channel of one sample: of dy, and of dy * (x - mean).
struct ChannelSums {
  float dy, along;
};

struct Problem {
  int64_t batch, channels, spatial, groups;  // of the shard
  float epsilon;

  int64_t per_group() const { return channels / groups; }
  int64_t row() const { return per_group() * spatial; }
};

Problem Describe(const Attributes& attributes, const TensorSpec& x) {
  Problem p{x.dims[0], x.dims[1], 1, attributes.Int("groups"),
            static_cast<float>(attributes.Float("epsilon"))};
  for (size_t d = 2; d < x.dims.size(); ++d) p.spatial *= x.dims[d];
  // Groups of the whole tensor; a shard has some of them.
  if (!x.global.empty() && x.global[1] > 0) p.groups = p.groups * x.dims[1] / x.global[1];
  return p;
}

struct Operands {
  Problem p;
  const float* x;
  const float* scale;  // may be null
  const float* bias;   // may be null
  const float* dy;
  float* out;  // y or dx
  ChannelSums* sums;
  Moments* moments;
};

template <int W>
ESPALIER_INLINE Moments MomentsOf(const float* x, int64_t n, float epsilon) {
  const float mean = simd::SumOf<W>(x, n) / static_cast<float>(n);
  const float variance = simd::SquaredDistance<W>(x, mean, n) / static_cast<float>(n);
  return {mean, 1.0f / __builtin_sqrtf(variance + epsilon)};
}

template <int W>
struct ForwardGroups {
  static ESPALIER_INLINE void Run(const Operands* o, int64_t begin, int64_t end) {
    const Problem p = o->p;
    for (int64_t row = begin; row < end; ++row) {
      const Moments m = MomentsOf<W>(o->x + row * p.row(), p.row(), p.epsilon);
      for (int64_t k = 0; k < p.per_group(); ++k) {
        const int64_t plane = row * p.per_group() + k, channel = plane % p.channels;
        const float scale = o->scale != nullptr ? o->scale[channel] : 1.0f;
        const float bias = o->bias != nullptr ? o->bias[channel] : 0.0f;
        const float* x = o->x + plane * p.spatial;
        float* y = o->out + plane * p.spatial;
        for (int64_t i = 0; i < p.spatial; ++i) y[i] = (x[i] - m.mean) * m.inverse * scale + bias;
      }
    }
  }
};

// sum(dy[i] * (x[i] - mean))
template <int W>
ESPALIER_INLINE float DotCentred(const float* dy, const float* x, float mean, int64_t n) {
  using namespace simd;
  Float<W> acc[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    acc[0] = Load<W>(dy + i) * (Load<W>(x + i) - mean) + acc[0];
    acc[1] = Load<W>(dy + i + W) * (Load<W>(x + i + W) - mean) + acc[1];
  }
  for (; i + W <= n; i += W) acc[0] = Load<W>(dy + i) * (Load<W>(x + i) - mean) + acc[0];
  if (i < n) {
    acc[1] = LoadPartial<W>(dy + i, n - i) * (LoadPartial<W>(x + i, n - i) - mean) + acc[1];
  }
  return Sum<W>(acc[0] + acc[1]);
}

template <int W>
struct BackwardGroups {
  static ESPALIER_INLINE void Run(const Operands* o, int64_t begin, int64_t end) {
    const Problem p = o->p;
    const float size = static_cast<float>(p.row());
    for (int64_t row = begin; row < end; ++row) {
      const Moments m = MomentsOf<W>(o->x + row * p.row(), p.row(), p.epsilon);
      o->moments[row] = m;
      // With g = dy * scale and h = (x - mean) / sd: dx = (g - mean(g) - h * mean(g * h)) / sd.
      float mean = 0, along = 0;
      for (int64_t k = 0; k < p.per_group(); ++k) {
        const int64_t plane = row * p.per_group() + k;
        const float* x = o->x + plane * p.spatial;
        const float* dy = o->dy + plane * p.spatial;
        const ChannelSums sums = {simd::SumOf<W>(dy, p.spatial),
                                  DotCentred<W>(dy, x, m.mean, p.spatial)};
        o->sums[plane] = sums;
        const float scale = o->scale != nullptr ? o->scale[plane % p.channels] : 1.0f;
        mean += scale * sums.dy;
        along += scale * sums.along;
      }
      if (o->out == nullptr) continue;
      mean /= size;
      along *= m.inverse * m.inverse / size;
      for (int64_t k = 0; k < p.per_group(); ++k) {
        const int64_t plane = row * p.per_group() + k;
        const float* x = o->x + plane * p.spatial;
        const float* dy = o->dy + plane * p.spatial;
        float* dx = o->out + plane * p.spatial;
        const float scale = o->scale != nullptr ? o->scale[plane % p.channels] : 1.0f;
        for (int64_t i = 0; i < p.spatial; ++i) {
          dx[i] = m.inverse * (dy[i] * scale - mean - (x[i] - m.mean) * along);
        }
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

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([p = Describe(spec.attributes, spec.inputs[0])](const KernelArgs& args) {
    if (p.row() == 0) return KernelStatus::Ok();
    const Operands operands = {p,       InputAt(args, 0),  InputAt(args, 1), InputAt(args, 2),
                               nullptr, OutputAt(args, 0), nullptr,          nullptr};
    ParallelRanges(p.batch * p.groups, 4 * p.row(), [&](int64_t begin, int64_t end) {
      simd::Dispatch<ForwardGroups>(&operands, begin, end);
    });
    return KernelStatus::Ok();
  });
}

// x, scale?, dy -> dx, dscale, dbias
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  const Problem p = Describe(spec.attributes, spec.inputs[0]);
  WorkspaceLayout layout;
  const size_t moments_at = layout.Add(p.batch * p.groups * sizeof(Moments));
  const size_t sums_at = layout.Add(p.batch * p.channels * sizeof(ChannelSums));
  return MakeKernel(
      [=](const KernelArgs& args) {
        const float* x = InputAt(args, 0);
        const float* dy = InputAt(args, 2);
        Moments* moments = WorkspaceAt<Moments>(args.workspace, moments_at);
        ChannelSums* sums = WorkspaceAt<ChannelSums>(args.workspace, sums_at);
        float *dscale = OutputAt(args, 1), *dbias = OutputAt(args, 2);
        const Operands operands = {p,    x,      InputAt(args, 1), nullptr, dy, OutputAt(args, 0),
                                   sums, moments};
        const int64_t rows = p.row() == 0 ? 0 : p.batch * p.groups;
        ParallelRanges(rows, 8 * p.row(), [&](int64_t begin, int64_t end) {
          simd::Dispatch<BackwardGroups>(&operands, begin, end);
        });
        for (int64_t c = 0; c < p.channels; ++c) {
          float scale = 0, bias = 0;
          for (int64_t n = 0; n < p.batch && rows > 0; ++n) {
            const ChannelSums& s = sums[n * p.channels + c];
            scale += s.along * moments[n * p.groups + c / p.per_group()].inverse;
            bias += s.dy;
          }
          if (dscale != nullptr) dscale[c] = scale;
          if (dbias != nullptr) dbias[c] = bias;
        }
        return KernelStatus::Ok();
      },
      layout.bytes());
}

}  // namespace

void RegisterGroupNormCpu(KernelRegistry& registry) {
  registry.Add("group_norm", ViaF32(MakeForward));
  registry.Add("group_norm_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
