#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_reciprocal {

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

}  // namespace cuda_reciprocal

void RegisterReciprocalCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_reciprocal;
  AddUnary(registry, "reciprocal", Reciprocal(), ReciprocalGradient());
  AddUnary(registry, "rsqrt", Rsqrt(), RsqrtGradient());
}

}  // namespace espalier
