#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_maximum_minimum {

// A comparison with NaN is false: the NaN that is left is b, and a goes in front if it is one.
struct Maximum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

struct Minimum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};

// dy for the operand `mine` unless `other` alone was chosen; a tie shares it.
__device__ __forceinline__ float Share(float dy, float mine, float other, bool loses) {
  if (mine == other) return 0.5f * dy;
  return loses ? 0.0f : dy;
}

struct MaximumGradientA {
  __device__ float operator()(float dy, float a, float b) const { return Share(dy, a, b, a < b); }
};
struct MaximumGradientB {
  __device__ float operator()(float dy, float a, float b) const { return Share(dy, b, a, b < a); }
};
struct MinimumGradientA {
  __device__ float operator()(float dy, float a, float b) const { return Share(dy, a, b, a > b); }
};
struct MinimumGradientB {
  __device__ float operator()(float dy, float a, float b) const { return Share(dy, b, a, b > a); }
};

}  // namespace cuda_maximum_minimum

void RegisterExtremumCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_maximum_minimum;
  AddBinary<Takes::kNumbers>(registry, "maximum", Maximum());
  AddBinaryGradient</*saves_inputs=*/true>(registry, "maximum_grad", MaximumGradientA(),
                                           MaximumGradientB());
  AddBinary<Takes::kNumbers>(registry, "minimum", Minimum());
  AddBinaryGradient</*saves_inputs=*/true>(registry, "minimum_grad", MinimumGradientA(),
                                           MinimumGradientB());
}

}  // namespace espalier
