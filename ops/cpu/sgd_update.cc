// torch.optim.SGD with dampening 0.
#include "ops/cpu/optimizer.h"
#include "ops/cpu/vectorize.h"

namespace espalier {
namespace {

struct Sgd {
  float scale, weight_decay, momentum, learning_rate;
  bool nesterov;
};

void Plain(Sgd sgd, float* p, const float* g, int64_t n) {
  Vectorize(
      [](Sgd s, float* p, const float* g, int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          p[i] -= s.learning_rate * (s.scale * g[i] + s.weight_decay * p[i]);
        }
      },
      sgd, p, g, n);
}

// The first step has momentum 0 here: the buffer starts as the gradient, whatever it held.
void WithMomentum(Sgd sgd, bool first, float* p, const float* g, float* buffer, int64_t n) {
  Vectorize(
      [](Sgd s, bool first, float* p, const float* g, float* buffer, int64_t n) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const float gradient = s.scale * g[i] + s.weight_decay * p[i];
          const float b = first ? gradient : s.momentum * buffer[i] + gradient;
          buffer[i] = b;
          p[i] -= s.learning_rate * (s.nesterov ? gradient + s.momentum * b : b);
        }
      },
      sgd, first, p, g, buffer, n);
}

}  // namespace

void RegisterSgdUpdateCpu(KernelRegistry& registry) {
  registry.Add("sgd_update", [](const KernelSpec& spec, std::string*) {
    const float momentum = static_cast<float>(spec.attributes.Float("momentum"));
    const float decay = static_cast<float>(spec.attributes.Float("weight_decay"));
    const bool nesterov = spec.attributes.Bool("nesterov");
    return MakeUpdateKernel([momentum, decay, nesterov](const UpdateArgs& u) {
      const Sgd sgd{u.scale, decay, momentum, static_cast<float>(u.learning_rate), nesterov};
      ParallelFor(u.n, 1, [&](int64_t begin, int64_t end) {
        if (momentum > 0) {
          WithMomentum(sgd, u.step <= 1, u.parameter + begin, u.gradient + begin,
                       u.buffers[0] + begin, end - begin);
        } else {
          Plain(sgd, u.parameter + begin, u.gradient + begin, end - begin);
        }
      });
    });
  });
}

}  // namespace espalier
