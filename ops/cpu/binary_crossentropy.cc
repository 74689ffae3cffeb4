#include <limits>

#include "ops/cpu/loss.h"
#include "ops/cpu/simd/f32_math.h"

namespace espalier {
namespace {

constexpr float kLeastLog = -100.0f;

// log(p), at least -100, also of 0 and of subnormal numbers.
float LogOf(float p) {
  const float log = FastLog(p);
  return p < std::numeric_limits<float>::min() ? kLeastLog : log;
}

struct FromLogits {
  float operator()(float x, float t) const {
    const float magnitude = x < 0.0f ? -x : x;
    return (x > 0.0f ? x : 0.0f) - x * t + FastLog1p(FastExp(-magnitude));
  }
};
struct FromProbabilities {
  float operator()(float p, float t) const {
    return -(t * LogOf(p) + (1.0f - t) * LogOf(1.0f - p));
  }
};

}  // namespace

void RegisterBinaryCrossentropyCpu(KernelRegistry& registry) {
  registry.Add("binary_crossentropy", [](const KernelSpec& spec, std::string*) {
    const double divisor = DivisorOf(spec.attributes);
    return spec.attributes.Bool("from_logits") ? ElementLoss(FromLogits{}, divisor)
                                               : ElementLoss(FromProbabilities{}, divisor);
  });
  registry.Add("binary_crossentropy_grad", [](const KernelSpec& spec, std::string*) {
    const double divisor = DivisorOf(spec.attributes);
    if (spec.attributes.Bool("from_logits")) {
      return ElementLossGradient([](float x, float t) { return FastSigmoid(x) - t; },
                                 [](float x, float) { return -x; }, divisor);
    }
    return ElementLossGradient(
        [](float p, float t) {
          const float variance = p * (1.0f - p);
          return (p - t) / (variance > 1e-12f ? variance : 1e-12f);
        },
        [](float p, float) { return LogOf(1.0f - p) - LogOf(p); }, divisor);
  });
}

}  // namespace espalier
