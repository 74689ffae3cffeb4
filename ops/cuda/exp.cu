#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_exp {

struct Forward {
  __device__ float operator()(float x) const { return expf(x); }
};

struct Backward {
  __device__ float operator()(float y, float dy) const { return dy * y; }
};

}  // namespace cuda_exp

void RegisterExpCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_exp;
  AddUnary(registry, "exp", Forward(), Backward());
}

}  // namespace espalier
