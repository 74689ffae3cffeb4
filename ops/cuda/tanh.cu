#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct Forward {
  __device__ float operator()(float x) const { return tanhf(x); }
};

struct Backward {
  __device__ float operator()(float y, float dy) const { return dy * (1.0f - y * y); }
};

}  // namespace

void RegisterTanhCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "tanh", Forward(), Backward());
}

}  // namespace espalier
