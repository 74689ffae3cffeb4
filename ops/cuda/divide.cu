#include "ops/cuda/binary.cuh"

namespace espalier {
namespace {

struct Forward {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a / b;
  }
};

struct GradientA {
  __device__ float operator()(float dy, float a, float b) const { return dy / b; }
};

struct GradientB {
  __device__ float operator()(float dy, float a, float b) const { return -dy * a / (b * b); }
};

}  // namespace

void RegisterDivideCuda(KernelRegistry& registry, DeviceContexts&) {
  AddBinary</*integers=*/false>(registry, "divide", Forward());
  AddBinaryGradient</*saves_inputs=*/true>(registry, "divide_grad", GradientA(), GradientB());
}

}  // namespace espalier
