#include "ops/cuda/loss.cuh"

namespace espalier {
namespace cuda_binary_crossentropy {

// At least -100, also of 0; NaN stays NaN.
__device__ float LogOf(float p) {
  const float log = logf(p);
  return log < -100.0f ? -100.0f : log;
}

struct FromLogits {
  __device__ float operator()(float x, float t) const {
    return fmaxf(x, 0.0f) - x * t + log1pf(expf(-fabsf(x)));
  }
};
struct LogitSlope {
  __device__ float operator()(float x, float t) const { return 1.0f / (1.0f + expf(-x)) - t; }
};
struct LogitTargetSlope {
  __device__ float operator()(float x, float) const { return -x; }
};
struct FromProbabilities {
  __device__ float operator()(float p, float t) const {
    return -(t * LogOf(p) + (1.0f - t) * LogOf(1.0f - p));
  }
};
struct ProbabilitySlope {
  __device__ float operator()(float p, float t) const {
    return (p - t) / fmaxf(p * (1.0f - p), 1e-12f);
  }
};
struct ProbabilityTargetSlope {
  __device__ float operator()(float p, float) const { return LogOf(1.0f - p) - LogOf(p); }
};

}  // namespace cuda_binary_crossentropy

void RegisterBinaryCrossentropyCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_binary_crossentropy;
  static const char kName[] = "binary_crossentropy";
  registry.Add(kName, ForF32([](const KernelSpec& spec) {
                 const double divisor = DivisorOf(spec.attributes);
                 return spec.attributes.Bool("from_logits")
                            ? ElementLoss(spec, FromLogits{}, divisor, kName)
                            : ElementLoss(spec, FromProbabilities{}, divisor, kName);
               }));
  registry.Add("binary_crossentropy_grad", ForF32([](const KernelSpec& spec) {
                 const double divisor = DivisorOf(spec.attributes);
                 return spec.attributes.Bool("from_logits")
                            ? ElementLossGradient(LogitSlope{}, LogitTargetSlope{}, divisor, kName)
                            : ElementLossGradient(ProbabilitySlope{}, ProbabilityTargetSlope{},
                                                  divisor, kName);
               }));
}

}  // namespace espalier
