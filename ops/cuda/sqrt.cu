#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct Forward {
  __device__ float operator()(float x) const { return sqrtf(x); }
};

struct Backward {
  __device__ float operator()(float y, float dy) const { return dy * 0.5f / y; }
};

}  // namespace

void RegisterSqrtCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "sqrt", Forward(), Backward());
}

}  // namespace espalier
