#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_multiply {

struct Forward {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return static_cast<T>(Wrapping(a) * Wrapping(b));
  }
};

struct GradientA {
  __device__ float operator()(float dy, float a, float b) const { return dy * b; }
};

struct GradientB {
  __device__ float operator()(float dy, float a, float b) const { return dy * a; }
};

}  // namespace cuda_multiply

void RegisterMultiplyCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_multiply;
  AddBinary<Takes::kNumbers>(registry, "multiply", Forward());
  AddBinaryGradient</*saves_inputs=*/true>(registry, "multiply_grad", GradientA(), GradientB());
}

}  // namespace espalier
