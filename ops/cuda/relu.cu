#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct Forward {
  // NaN stays.
  __device__ float operator()(float x) const { return x <= 0.0f ? 0.0f : x; }
};

struct Backward {
  __device__ float operator()(float y, float dy) const { return y > 0.0f ? dy : 0.0f; }
};

}  // namespace

void RegisterReluCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "relu", Forward(), Backward());
}

}  // namespace espalier
