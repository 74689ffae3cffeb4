#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_scalar {

struct Plus {
  float value;
  __device__ float operator()(float x) const { return x + value; }
};

struct Minus {
  float value;
  __device__ float operator()(float x) const { return x - value; }
};

struct Times {
  float value;
  __device__ float operator()(float x) const { return x * value; }
};

struct By {
  float value;
  __device__ float operator()(float x) const { return x / value; }
};

struct Pass {
  float value;
  __device__ float operator()(float dy) const { return dy; }
};

struct Power {
  float value;
  // The common exponents need no logarithm; the branches are the same for all threads.
  __device__ float operator()(float x) const {
    if (value == 1.0f) return x;
    if (value == 2.0f) return x * x;
    if (value == 3.0f) return x * x * x;
    if (value == 0.5f) return sqrtf(x);
    return powf(x, value);
  }
};

struct PowerGradient {
  float value;
  __device__ float operator()(float x, float dy) const {
    return value == 0.0f ? 0.0f : dy * (value * Power{value - 1.0f}(x));
  }
};

template <typename F>
F Bind(const Attributes& attributes) {
  return F{static_cast<float>(attributes.Float("value"))};
}

}  // namespace cuda_scalar

void RegisterScalarCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_scalar;
  AddUnaryWith(registry, "add_scalar", Bind<Plus>, Bind<Pass>);
  AddUnaryWith(registry, "subtract_scalar", Bind<Minus>, Bind<Pass>);
  AddUnaryWith(registry, "multiply_scalar", Bind<Times>, Bind<Times>);
  AddUnaryWith(registry, "divide_scalar", Bind<By>, Bind<By>);
  AddUnaryWith(registry, "power_scalar", Bind<Power>, Bind<PowerGradient>);
}

}  // namespace espalier
