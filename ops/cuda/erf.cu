#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace {

struct Forward {
  __device__ float operator()(float x) const { return erff(x); }
};

struct Backward {
  __device__ float operator()(float x, float dy) const {
    return dy * (1.12837916710f * expf(-x * x));
  }
};

}  // namespace

void RegisterErfCuda(KernelRegistry& registry, DeviceContexts&) {
  AddUnary(registry, "erf", Forward(), Backward());
}

}  // namespace espalier
