#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct Forward {
  __device__ float operator()(float x) const { return 1.0f / (1.0f + expf(-x)); }
};

struct Backward {
  __device__ float operator()(float y, float dy) const { return dy * y * (1.0f - y); }
};

}  // namespace

void RegisterSigmoidCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "sigmoid", Forward(), Backward());
}

}  // namespace espalier
