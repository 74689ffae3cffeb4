#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_subtract {

struct Forward {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return static_cast<T>(Wrapping(a) - Wrapping(b));
  }
};

struct GradientA {
  __device__ float operator()(float dy, float a, float b) const { return dy; }
};

struct GradientB {
  __device__ float operator()(float dy, float a, float b) const { return -dy; }
};

}  // namespace cuda_subtract

void RegisterSubtractCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_subtract;
  AddBinary<Takes::kNumbers>(registry, "subtract", Forward());
  AddBinaryGradient</*saves_inputs=*/false>(registry, "subtract_grad", GradientA(), GradientB());
}

}  // namespace espalier
