#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_power {

struct Forward {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, float>) {
      return powf(a, b);
    } else {
      return IntegerPower(a, b);
    }
  }
};

struct GradientA {
  __device__ float operator()(float dy, float a, float b) const {
    return b == 0.0f ? 0.0f : dy * (b * powf(a, b - 1.0f));
  }
};

struct GradientB {
  __device__ float operator()(float dy, float a, float b) const {
    return a == 0.0f && b >= 0.0f ? 0.0f : dy * (powf(a, b) * logf(a));
  }
};

}  // namespace cuda_power

void RegisterPowerCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_power;
  AddBinary<Takes::kNumbers>(registry, "power", Forward());
  AddBinaryGradient</*saves_inputs=*/true>(registry, "power_grad", GradientA(), GradientB());
}

}  // namespace espalier
