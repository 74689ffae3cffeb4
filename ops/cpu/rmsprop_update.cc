// torch.optim.RMSprop.
#include "ops/cpu/optimizer.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier {
namespace {

struct Rmsprop {
  float scale, weight_decay, learning_rate, alpha, rest, epsilon, momentum;
  bool centered;
};

// `kMomentum` and `kCentered` say which of the last two buffers are present.
template <bool kMomentum, bool kCentered>
void Run(const Rmsprop& rmsprop, const UpdateOperands& o) {
  Vectorize(
      [](Rmsprop r, float* p, const float* g, float* square, float* buffer, float* average,
         int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
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
      rmsprop, o.parameter, o.gradient, o.buffers[0], o.buffers[1], o.buffers[2], o.n);
}

}  // namespace

void RegisterRmspropUpdateCpu(KernelRegistry& registry) {
  registry.Add("rmsprop_update", [](const KernelSpec& spec, std::string*) {
    const auto factors = [attributes = spec.attributes](const UpdateStep& u) {
      const double alpha = attributes.Float("alpha"), momentum = attributes.Float("momentum");
      return Rmsprop{u.scale,
                     static_cast<float>(attributes.Float("weight_decay")),
                     static_cast<float>(u.learning_rate),
                     static_cast<float>(alpha),
                     static_cast<float>(1.0 - alpha),
                     static_cast<float>(attributes.Float("eps")),
                     static_cast<float>(momentum),
                     attributes.Bool("centered")};
    };
    return MakeUpdateKernel(factors, [](const Rmsprop& r, const UpdateOperands& o) {
      if (r.momentum > 0) {
        r.centered ? Run<true, true>(r, o) : Run<true, false>(r, o);
      } else {
        r.centered ? Run<false, true>(r, o) : Run<false, false>(r, o);
      }
    });
  });
}

}  // namespace espalier
