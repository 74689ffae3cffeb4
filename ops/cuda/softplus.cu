#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_softplus {

struct Softplus {
  // NaN stays.
  __device__ float operator()(float x) const {
    return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x)));
  }
};
struct SoftplusGradient {
  __device__ float operator()(float x, float dy) const { return dy / (1.0f + expf(-x)); }
};

struct Softsign {
  __device__ float operator()(float x) const { return x / (1.0f + fabsf(x)); }
};
struct SoftsignGradient {
  __device__ float operator()(float x, float dy) const {
    const float r = 1.0f / (1.0f + fabsf(x));
    return dy * r * r;
  }
};

// tanh(log(1 + e)) = n / (n + 2), with e = exp(x) and n = e * (e + 2). Beyond 20 it is 1 in f32,
// and there n * n is still finite.
__device__ __forceinline__ float MishExp(float x) { return expf(x > 20.0f ? 20.0f : x); }

struct Mish {
  __device__ float operator()(float x) const {
    const float e = MishExp(x);
    const float n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
  }
};
struct MishGradient {
  __device__ float operator()(float x, float dy) const {
    const float e = MishExp(x);
    const float n = e * (e + 2.0f);
    const float rest = 1.0f / (n + 2.0f);
    const float slope = 4.0f * e * (e + 1.0f) * rest * rest;
    return dy * (n * rest + (slope > 0.0f ? x * slope : slope));  // x may be minus infinity
  }
};

}  // namespace cuda_softplus

void RegisterSoftplusCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_softplus;
  AddUnary(registry, "softplus", Softplus(), SoftplusGradient());
  AddUnary(registry, "softsign", Softsign(), SoftsignGradient());
  AddUnary(registry, "mish", Mish(), MishGradient());
}

}  // namespace espalier
