// torch.optim.SGD with dampening 0.
#include "ops/cpu/optimizer.h"
#include "ops/cpu/simd/vectorize.h"

namespace espalier {
namespace {

struct Sgd {
  float scale, weight_decay, momentum, learning_rate;
  bool nesterov;
  bool first;  // the first step has momentum 0 here: the buffer starts as the gradient
};

void Plain(const Sgd& sgd, const UpdateOperands& o) {
  Vectorize(
      [](Sgd s, float* p, const float* g, int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          p[i] -= s.learning_rate * (s.scale * g[i] + s.weight_decay * p[i]);
        }
      },
      sgd, o.parameter, o.gradient, o.n);
}

void WithMomentum(const Sgd& sgd, const UpdateOperands& o) {
  Vectorize(
      [](Sgd s, float* p, const float* g, float* buffer, int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const float gradient = s.scale * g[i] + s.weight_decay * p[i];
          const float b = s.first ? gradient : s.momentum * buffer[i] + gradient;
          buffer[i] = b;
          p[i] -= s.learning_rate * (s.nesterov ? gradient + s.momentum * b : b);
        }
      },
      sgd, o.parameter, o.gradient, o.buffers[0], o.n);
}

}  // namespace

void RegisterSgdUpdateCpu(KernelRegistry& registry) {
  registry.Add("sgd_update", [](const KernelSpec& spec, std::string*) {
    const float momentum = static_cast<float>(spec.attributes.Float("momentum"));
    const float decay = static_cast<float>(spec.attributes.Float("weight_decay"));
    const bool nesterov = spec.attributes.Bool("nesterov");
    const auto factors = [=](const UpdateStep& u) {
      return Sgd{u.scale,  decay,      momentum, static_cast<float>(u.learning_rate),
                 nesterov, u.step <= 1};
    };
    return MakeUpdateKernel(factors, [](const Sgd& sgd, const UpdateOperands& o) {
      sgd.momentum > 0 ? WithMomentum(sgd, o) : Plain(sgd, o);
    });
  });
}

}  // namespace espalier
