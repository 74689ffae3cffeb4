#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_sign {

struct Neg {
  template <typename T>
  __device__ T operator()(T x) const {
    return Negated(x);
  }
};
struct NegGradient {
  __device__ float operator()(float dy) const { return -dy; }
};

struct Abs {
  template <typename T>
  __device__ T operator()(T x) const {
    if constexpr (std::is_same_v<T, float>) {
      return fabsf(x);
    } else {
      return IsNegative(x) ? Negated(x) : x;
    }
  }
};
struct AbsGradient {
  __device__ float operator()(float x, float dy) const {
    return dy * static_cast<float>((x > 0.0f) - (x < 0.0f));
  }
};

struct Sign {
  template <typename T>
  __device__ T operator()(T x) const {
    return x == x ? static_cast<T>((x > T()) - IsNegative(x)) : x;
  }
};

}  // namespace cuda_sign

void RegisterSignCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_sign;
  AddUnary<Takes::kNumbers>(registry, "neg", Neg(), NegGradient());
  AddUnary<Takes::kNumbers>(registry, "abs", Abs(), AbsGradient());
  AddUnary<Takes::kNumbers>(registry, "sign", Sign(), ZeroGradient());
}

}  // namespace espalier
