#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_log {

struct Forward {
  __device__ float operator()(float x) const { return logf(x); }
};

struct Backward {
  __device__ float operator()(float x, float dy) const { return dy / x; }
};

}  // namespace cuda_log

void RegisterLogCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_log;
  AddUnary(registry, "log", Forward(), Backward());
}

}  // namespace espalier
