// torch.optim.RMSprop.
#include "ops/cpu/optimizer.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier {
namespace {

struct Rmsprop {
  float scale, weight_decay, learning_rate, alpha, rest, momentum;
  float epsilon, below_root;  // added to the root, and to what it is taken of
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
          float direction = gradient / (__builtin_sqrtf(variance + r.below_root) + r.epsilon);
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
      const float epsilon = static_cast<float>(attributes.Float("eps"));
      const bool in_sqrt = attributes.Bool("eps_in_sqrt");
      return Rmsprop{.scale = u.scale,
                     .weight_decay = static_cast<float>(attributes.Float("weight_decay")),
                     .learning_rate = static_cast<float>(u.learning_rate),
                     .alpha = static_cast<float>(alpha),
                     .rest = static_cast<float>(1.0 - alpha),
                     .momentum = static_cast<float>(momentum),
                     .epsilon = in_sqrt ? 0.0f : epsilon,
                     .below_root = in_sqrt ? epsilon : 0.0f,
                     .centered = attributes.Bool("centered")};
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
