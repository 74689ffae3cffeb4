// torch.optim.Adagrad.
#include "ops/cpu/optimizer.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier {
namespace {

struct Adagrad {
  float scale, weight_decay, step_size;
  float epsilon, below_root;  // added to the root, and to what it is taken of
  float initial;              // added to the sum in the first step
};

void Run(const Adagrad& adagrad, const UpdateOperands& o) {
  Vectorize(
      [](Adagrad a, float* p, const float* g, float* sum, int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const float gradient = a.scale * g[i] + a.weight_decay * p[i];
          const float total = sum[i] + a.initial + gradient * gradient;
          sum[i] = total;
          const float root = __builtin_sqrtf(total + a.below_root) + a.epsilon;
          p[i] -= a.step_size * gradient / root;
        }
      },
      adagrad, o.parameter, o.gradient, o.buffers[0], o.n);
}

}  // namespace

void RegisterAdagradUpdateCpu(KernelRegistry& registry) {
  registry.Add("adagrad_update", [](const KernelSpec& spec, std::string*) {
    const auto factors = [attributes = spec.attributes](const UpdateStep& u) {
      const double slower = 1.0 + (u.step - 1.0) * attributes.Float("lr_decay");
      const double initial = u.step <= 1 ? attributes.Float("initial_accumulator_value") : 0.0;
      const float epsilon = static_cast<float>(attributes.Float("eps"));
      const bool in_sqrt = attributes.Bool("eps_in_sqrt");
      return Adagrad{.scale = u.scale,
                     .weight_decay = static_cast<float>(attributes.Float("weight_decay")),
                     .step_size = static_cast<float>(u.learning_rate / slower),
                     .epsilon = in_sqrt ? 0.0f : epsilon,
                     .below_root = in_sqrt ? epsilon : 0.0f,
                     .initial = static_cast<float>(initial)};
    };
    return MakeUpdateKernel(
        factors, [](const Adagrad& adagrad, const UpdateOperands& o) { Run(adagrad, o); });
  });
}

}  // namespace espalier
