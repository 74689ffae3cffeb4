#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct Forward {
  __device__ float operator()(float x) const { return logf(x); }
};

struct Backward {
  __device__ float operator()(float x, float dy) const { return dy / x; }
};

}  // namespace

void RegisterLogCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "log", Forward(), Backward());
}

}  // namespace espalier
