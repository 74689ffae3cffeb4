#include <cmath>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/f64_math.h"

namespace espalier {
namespace {

// Kernel `name`: y = f(x, value), and its gradient, gradient(dy, value).
template <typename F, typename G>
void AddScalar(KernelRegistry& registry, const std::string& name, F f, G gradient) {
  const auto bind = [](auto function) {
    return [function](const Attributes& attributes) {
      return [function, value = static_cast<float>(attributes.Float("value"))](float x) {
        return function(x, value);
      };
    };
  };
  AddUnaryWith(registry, name, bind(f), bind(gradient));
}

// Calls run(f) with f(x) = x^exponent; the common exponents need no logarithm.
template <typename Run>
void WithPower(float exponent, const Run& run) {
  if (exponent == 1.0f) return run([](float x) { return x; });
  if (exponent == 2.0f) return run([](float x) { return x * x; });
  if (exponent == 3.0f) return run([](float x) { return x * x * x; });
  if (exponent == 0.5f) return run([](float x) { return std::sqrt(x); });
  return run([exponent](float x) { return FastPow(x, exponent); });
}

void Power(float value, const KernelArgs& args) {
  const TensorView& y = args.outputs[0];
  WithPower(value, [&](auto power) {
    MapUnary(power, args.inputs[0].as<float>(), y.as<float>(), y.num_elements());
  });
}

void PowerGradient(float value, const KernelArgs& args) {
  const TensorView& dx = args.outputs[0];
  const float *x = args.inputs[0].as<float>(), *dy = args.inputs[1].as<float>();
  if (value == 0.0f) {
    return MapUnary([](float) { return 0.0f; }, dy, dx.as<float>(), dx.num_elements());
  }
  WithPower(value - 1.0f, [&](auto power) {
    MapBinary([power, value](float x, float dy) { return dy * (value * power(x)); }, x, dy,
              dx.as<float>(), dx.num_elements());
  });
}

KernelFactory Factory(void (*run)(float value, const KernelArgs& args)) {
  return ViaF32([run](const KernelSpec& spec, std::string*) {
    const float value = static_cast<float>(spec.attributes.Float("value"));
    return MakeKernel([run, value](const KernelArgs& args) {
      run(value, args);
      return KernelStatus::Ok();
    });
  });
}

}  // namespace

void RegisterScalarCpu(KernelRegistry& registry) {
  const auto pass = [](float dy, float) { return dy; };
  const auto times = [](float x, float value) { return x * value; };
  const auto by = [](float x, float value) { return x / value; };
  AddScalar(
      registry, "add_scalar", [](float x, float value) { return x + value; }, pass);
  AddScalar(
      registry, "subtract_scalar", [](float x, float value) { return x - value; }, pass);
  AddScalar(registry, "multiply_scalar", times, times);
  AddScalar(registry, "divide_scalar", by, by);
  registry.Add("power_scalar", Factory(Power));
  registry.Add("power_scalar_grad", Factory(PowerGradient));
}

}  // namespace espalier
