// Local response normalization over adjacent channels. Work is cut into blocks of contiguous
// positions; a block iterates over the channels with vectors.
#include <algorithm>
#include <cmath>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

constexpr int64_t kBlock = 64;

struct Problem {
  int64_t channels, spatial;
  int64_t before, after;  // channels of a window beside its own
  float scale, beta, bias;
};

Problem Describe(const Attributes& a, const Dims& x) {
  const int64_t size = a.Int("size");
  Problem p{x[1],
            1,
            (size - 1) / 2,
            size / 2,
            static_cast<float>(a.Float("alpha") / static_cast<double>(size)),
            static_cast<float>(a.Float("beta")),
            static_cast<float>(a.Float("bias"))};
  for (size_t d = 2; d < x.size(); ++d) p.spatial *= x[d];
  return p;
}

// v^-beta
float Power(float v, float beta) {
  if (beta == 0.75f) {
    const float root = std::sqrt(v);
    return 1.0f / (root * std::sqrt(root));
  }
  if (beta == 1.0f) return 1.0f / v;
  if (beta == 0.5f) return 1.0f / std::sqrt(v);
  return std::pow(v, -beta);
}

// bases[j] = bias + scale * the sum of squares around channel c, for n <= kBlock positions of x.
void Bases(const Problem& p, const float* x, int64_t c, int64_t n, float* bases) {
  const int64_t first = std::max<int64_t>(0, c - p.before),
                last = std::min(p.channels - 1, c + p.after);
  Vectorize(
      [](const float* x, int64_t channels, int64_t stride, float scale, float bias, float* bases,
         int64_t n) {
        float sums[kBlock] = {};
        for (int64_t k = 0; k < channels; ++k, x += stride) {
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) sums[j] += x[j] * x[j];
        }
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) bases[j] = bias + scale * sums[j];
      },
      x + first * p.spatial, last - first + 1, p.spatial, p.scale, p.bias, bases, n);
}

// Calls f(offset of the first of n positions, n) for blocks of every sample.
template <typename F>
void ForBlocks(const Problem& p, int64_t batch, const F& f) {
  const int64_t blocks = (p.spatial + kBlock - 1) / kBlock;
  const int64_t work = p.channels * kBlock * (p.before + p.after + 8);
  ParallelRanges(batch * blocks, work, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = i % blocks * kBlock;
      f(i / blocks * p.channels * p.spatial + start, std::min(kBlock, p.spatial - start));
    }
  });
}

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([a = spec.attributes](const KernelArgs& args) {
    const Problem p = Describe(a, args.inputs[0].dims());
    ForBlocks(p, args.inputs[0].dims()[0], [&](int64_t at, int64_t n) {
      const float* x = args.inputs[0].as<float>() + at;
      float* y = args.outputs[0].as<float>() + at;
      float bases[kBlock];
      for (int64_t c = 0; c < p.channels; ++c) {
        Bases(p, x, c, n, bases);
        for (int64_t j = 0; j < n; ++j) {
          y[c * p.spatial + j] = x[c * p.spatial + j] * Power(bases[j], p.beta);
        }
      }
    });
    return KernelStatus::Ok();
  });
}

// x, dy -> dx = dy * base^-beta - 2 scale beta x * sum(dy x base^(-beta - 1)), the sum over the
// channels in whose windows x lies. The workspace holds the summands.
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel(
      [a = spec.attributes](const KernelArgs& args) {
        if (!args.outputs[0].present()) return KernelStatus::Ok();
        const Problem p = Describe(a, args.inputs[0].dims());
        ForBlocks(p, args.inputs[0].dims()[0], [&](int64_t at, int64_t n) {
          const float* x = args.inputs[0].as<float>() + at;
          const float* dy = args.inputs[1].as<float>() + at;
          float* dx = args.outputs[0].as<float>() + at;
          float* terms = static_cast<float*>(args.workspace) + at;
          float bases[kBlock];
          for (int64_t c = 0; c < p.channels; ++c) {
            Bases(p, x, c, n, bases);
            for (int64_t j = 0; j < n; ++j) {
              const int64_t i = c * p.spatial + j;
              dx[i] = dy[i] * Power(bases[j], p.beta);
              terms[i] = dx[i] * x[i] / bases[j];
            }
          }
          for (int64_t c = 0; c < p.channels; ++c) {
            float sums[kBlock] = {};
            for (int64_t k = std::max<int64_t>(0, c - p.after);
                 k <= std::min(p.channels - 1, c + p.before); ++k) {
              for (int64_t j = 0; j < n; ++j) sums[j] += terms[k * p.spatial + j];
            }
            for (int64_t j = 0; j < n; ++j) {
              const int64_t i = c * p.spatial + j;
              dx[i] -= 2.0f * p.scale * p.beta * x[i] * sums[j];
            }
          }
        });
        return KernelStatus::Ok();
      },
      spec.inputs[0].num_elements() * sizeof(float));
}

}  // namespace

void RegisterLrnCpu(KernelRegistry& registry) {
  registry.Add("lrn", ViaF32(MakeForward));
  registry.Add("lrn_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
