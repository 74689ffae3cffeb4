#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct Floor {
  __device__ float operator()(float x) const { return floorf(x); }
};

struct Ceil {
  __device__ float operator()(float x) const { return ceilf(x); }
};

struct Round {
  __device__ float operator()(float x) const { return rintf(x); }
};

}  // namespace

void RegisterRoundingCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "floor", Floor(), ZeroGradient());
  AddUnary(registry, "ceil", Ceil(), ZeroGradient());
  AddUnary(registry, "round", Round(), ZeroGradient());
}

}  // namespace espalier
