#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_rounding {

struct Floor {
  __device__ float operator()(float x) const { return floorf(x); }
};

struct Ceil {
  __device__ float operator()(float x) const { return ceilf(x); }
};

struct Round {
  __device__ float operator()(float x) const { return rintf(x); }
};

}  // namespace cuda_rounding

void RegisterRoundingCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_rounding;
  AddUnary(registry, "floor", Floor(), ZeroGradient());
  AddUnary(registry, "ceil", Ceil(), ZeroGradient());
  AddUnary(registry, "round", Round(), ZeroGradient());
}

}  // namespace espalier
