#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_sqrt {

struct Forward {
  __device__ float operator()(float x) const { return sqrtf(x); }
};

struct Backward {
  __device__ float operator()(float y, float dy) const { return dy * 0.5f / y; }
};

}  // namespace cuda_sqrt

void RegisterSqrtCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_sqrt;
  AddUnary(registry, "sqrt", Forward(), Backward());
}

}  // namespace espalier
