// torch.optim.RMSprop.
#include "ops/cpu/optimizer.h"
#include "ops/cpu/vectorize.h"

namespace espalier {
namespace {

struct Rmsprop {
  float scale, weight_decay, learning_rate, alpha, rest, epsilon, momentum;
};

// `kMomentum` and `kCentered` say which of the last two buffers are there.
template <bool kMomentum, bool kCentered>
void Run(Rmsprop rmsprop, const UpdateArgs& u) {
  ParallelFor(u.n, 2, [&](int64_t begin, int64_t end) {
    Vectorize(
        [](Rmsprop r, float* p, const float* g, float* square, float* buffer, float* average,
           int64_t begin, int64_t end) {
#pragma omp simd
          for (int64_t i = begin; i < end; ++i) {
            const float gradient = r.scale * g[i] + r.weight_decay * p[i];
            const float v = r.alpha * square[i] + r.rest * gradient * gradient;
            square[i] = v;
            float variance = v;
            if constexpr (kCentered) {
              const float mean = r.alpha * average[i] + r.rest * gradient;
              average[i] = mean;
              variance = v - mean * mean;
            }
            float direction = gradient / (__builtin_sqrtf(variance) + r.epsilon);
            if constexpr (kMomentum) {
              direction += r.momentum * buffer[i];
              buffer[i] = direction;
            }
            p[i] -= r.learning_rate * direction;
          }
        },
        rmsprop, u.parameter, u.gradient, u.buffers[0], u.buffers[1], u.buffers[2], begin, end);
  });
}

}  // namespace

void RegisterRmspropUpdateCpu(KernelRegistry& registry) {
  registry.Add("rmsprop_update", [](const KernelSpec& spec, std::string*) {
    return MakeUpdateKernel([attributes = spec.attributes](const UpdateArgs& u) {
      const double alpha = attributes.Float("alpha"), momentum = attributes.Float("momentum");
      const Rmsprop r{u.scale,
                      static_cast<float>(attributes.Float("weight_decay")),
                      static_cast<float>(u.learning_rate),
                      static_cast<float>(alpha),
                      static_cast<float>(1.0 - alpha),
                      static_cast<float>(attributes.Float("eps")),
                      static_cast<float>(momentum)};
      const bool centered = attributes.Bool("centered");
      if (momentum > 0) {
        centered ? Run<true, true>(r, u) : Run<true, false>(r, u);
      } else {
        centered ? Run<false, true>(r, u) : Run<false, false>(r, u);
      }
    });
  });
}

}  // namespace espalier
