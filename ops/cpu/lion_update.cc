#include "ops/cpu/optimizer.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier {
namespace {

struct Lion {
  float scale, parameter_factor, learning_rate, beta1, rest1, beta2, rest2;
};

void Run(const Lion& lion, const UpdateOperands& o) {
  Vectorize(
      [](Lion l, float* p, const float* g, float* m, int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const float gradient = l.scale * g[i];
          const float direction = l.beta1 * m[i] + l.rest1 * gradient;
          const float move = direction > 0.0f ? l.learning_rate : -l.learning_rate;
          m[i] = l.beta2 * m[i] + l.rest2 * gradient;
          // NaN must not become a step: it is kept by adding it.
          p[i] = l.parameter_factor * p[i] - (direction == 0.0f ? 0.0f : move) +
                 (direction - direction);
        }
      },
      lion, o.parameter, o.gradient, o.buffers[0], o.n);
}

}  // namespace

void RegisterLionUpdateCpu(KernelRegistry& registry) {
  registry.Add("lion_update", [](const KernelSpec& spec, std::string*) {
    const auto factors = [attributes = spec.attributes](const UpdateStep& u) {
      const double beta1 = attributes.Float("beta1"), beta2 = attributes.Float("beta2");
      const double decay = u.learning_rate * attributes.Float("weight_decay");
      return Lion{u.scale,
                  static_cast<float>(1.0 - decay),
                  static_cast<float>(u.learning_rate),
                  static_cast<float>(beta1),
                  static_cast<float>(1.0 - beta1),
                  static_cast<float>(beta2),
                  static_cast<float>(1.0 - beta2)};
    };
    return MakeUpdateKernel(factors,
                            [](const Lion& lion, const UpdateOperands& o) { Run(lion, o); });
  });
}

}  // namespace espalier
