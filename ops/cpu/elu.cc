#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/f64_math.h"

namespace espalier {
namespace {

// y = positive * x where x > 0, else negative * (exp(x * rate) - 1): elu, celu and selu.
struct Elu {
  float positive, negative, rate;

  float operator()(float x) const {
    const float above = positive * x;
    const float below = negative * FastExpm1(x * rate);
    return x > 0.0f ? above : below;
  }
};

struct EluGradient {
  float positive, negative, rate;

  float operator()(float x, float dy) const {
    const float below = negative * rate * static_cast<float>(ExpF64(x * rate));
    return dy * (x > 0.0f ? positive : below);
  }
};

// `parameters(attributes, alpha)` gives an Elu.
template <typename Parameters>
void AddElu(KernelRegistry& registry, const std::string& name, Parameters parameters) {
  const auto make = [parameters](const Attributes& attributes) {
    return parameters(attributes, static_cast<float>(attributes.Float("alpha")));
  };
  AddUnaryWith(registry, name, make, [make](const Attributes& attributes) {
    const Elu elu = make(attributes);
    return EluGradient{elu.positive, elu.negative, elu.rate};
  });
}

}  // namespace

void RegisterEluCpu(KernelRegistry& registry) {
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
