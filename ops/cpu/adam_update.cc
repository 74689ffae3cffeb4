// torch.optim.Adam, and torch.optim.AdamW if `decoupled`; keras.optimizers.Adam if `epsilon_hat`.
#include <cmath>

#include "ops/cpu/optimizer.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier {
namespace {

struct Adam {
  float scale;
  float gradient_decay;    // weight decay that is added to the gradient
  float parameter_factor;  // decoupled weight decay: 1 - lr * weight_decay
  float beta1, beta2;
  float rest1, rest2;     // 1 - beta, rounded once
  float step_size;        // lr / (1 - beta1^t)
  float root_correction;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

void Update(const Adam& adam, const UpdateOperands& o) {
  Vectorize(
      [](Adam a, float* p, const float* g, float* m, float* v, int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const float gradient = a.scale * g[i] + a.gradient_decay * p[i];
          const float mean = a.beta1 * m[i] + a.rest1 * gradient;
          const float square = a.beta2 * v[i] + a.rest2 * gradient * gradient;
          m[i] = mean;
          v[i] = square;
          const float denominator = __builtin_sqrtf(square) * a.root_correction + a.epsilon;
          p[i] = a.parameter_factor * p[i] - a.step_size * mean / denominator;
        }
      },
      adam, o.parameter, o.gradient, o.buffers[0], o.buffers[1], o.n);
}

}  // namespace

void RegisterAdamUpdateCpu(KernelRegistry& registry) {
  registry.Add("adam_update", [](const KernelSpec& spec, std::string*) {
    const double beta1 = spec.attributes.Float("beta1"), beta2 = spec.attributes.Float("beta2");
    const double epsilon = spec.attributes.Float("epsilon");
    const double decay = spec.attributes.Float("weight_decay");
    const bool decoupled = spec.attributes.Bool("decoupled");
    const bool epsilon_hat = spec.attributes.Bool("epsilon_hat");
    const auto factors = [=](const UpdateStep& u) {
      const double root_correction = 1.0 / std::sqrt(1.0 - std::pow(beta2, u.step));
      return Adam{
          .scale = u.scale,
          .gradient_decay = static_cast<float>(decoupled ? 0.0 : decay),
          .parameter_factor = static_cast<float>(decoupled ? 1.0 - u.learning_rate * decay : 1.0),
          .beta1 = static_cast<float>(beta1),
          .beta2 = static_cast<float>(beta2),
          .rest1 = static_cast<float>(1.0 - beta1),
          .rest2 = static_cast<float>(1.0 - beta2),
          .step_size = static_cast<float>(u.learning_rate / (1.0 - std::pow(beta1, u.step))),
          .root_correction = static_cast<float>(root_correction),
          .epsilon = static_cast<float>(epsilon_hat ? epsilon * root_correction : epsilon)};
    };
    return MakeUpdateKernel(factors, [](const Adam& a, const UpdateOperands& o) { Update(a, o); });
  });
}

}  // namespace espalier
