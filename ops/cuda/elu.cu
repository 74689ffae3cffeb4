#include "ops/cuda/elementwise.cuh"

namespace espalier {
namespace cuda_elu {

// y = positive * x where x > 0, else negative * (exp(x * rate) - 1): elu, celu and selu.
struct Elu {
  float positive, negative, rate;
  __device__ float operator()(float x) const {
    return x > 0.0f ? positive * x : negative * expm1f(x * rate);
  }
};

struct EluGradient {
  float positive, negative, rate;
  __device__ float operator()(float x, float dy) const {
    return dy * (x > 0.0f ? positive : negative * rate * expf(x * rate));
  }
};

// `parameters(attributes, alpha)` gives an Elu.
template <typename Parameters>
void AddElu(KernelRegistry& registry, const char* name, Parameters parameters) {
  const auto make = [parameters](const Attributes& attributes) {
    return parameters(attributes, static_cast<float>(attributes.Float("alpha")));
  };
  AddUnaryWith(registry, name, make, [make](const Attributes& attributes) {
    const Elu elu = make(attributes);
    return EluGradient{elu.positive, elu.negative, elu.rate};
  });
}

}  // namespace cuda_elu

void RegisterEluCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_elu;
  AddElu(registry, "elu", [](const Attributes&, float alpha) { return Elu{1.0f, alpha, 1.0f}; });
  AddElu(registry, "celu", [](const Attributes&, float alpha) {
    return Elu{1.0f, alpha, 1.0f / alpha};
  });
  AddElu(registry, "selu", [](const Attributes& attributes, float alpha) {
    const float gamma = static_cast<float>(attributes.Float("gamma"));
    return Elu{gamma, gamma * alpha, 1.0f};
  });
}

}  // namespace espalier
