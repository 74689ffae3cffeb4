#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct Forward {
  __device__ float operator()(float x) const { return x / (1.0f + expf(-x)); }
};

struct Backward {
  __device__ float operator()(float x, float dy) const {
    const float s = 1.0f / (1.0f + expf(-x));
    return dy * s * (1.0f + x * (1.0f - s));
  }
};

}  // namespace

void RegisterSiluCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "silu", Forward(), Backward());
}

}  // namespace espalier
