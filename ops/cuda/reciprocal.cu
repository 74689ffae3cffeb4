#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct Reciprocal {
  __device__ float operator()(float x) const { return 1.0f / x; }
};
struct ReciprocalGradient {
  __device__ float operator()(float y, float dy) const { return -dy * y * y; }
};

struct Rsqrt {
  __device__ float operator()(float x) const { return rsqrtf(x); }
};
struct RsqrtGradient {
  __device__ float operator()(float y, float dy) const { return -0.5f * dy * y * y * y; }
};

}  // namespace

void RegisterReciprocalCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "reciprocal", Reciprocal(), ReciprocalGradient());
  AddUnary(registry, "rsqrt", Rsqrt(), RsqrtGradient());
}

}  // namespace espalier
