#include "ops/cpu/binary.h"
#include "ops/cpu/simd/f64_math.h"

namespace espalier {
namespace {

template <typename T>
T Power(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return FastPow(a, b);
  } else {
    return IntegerPower(a, b);
  }
}

float GradientA(float dy, float a, float b) {
  const float slope = dy * (b * FastPow(a, b - 1.0f));
  return b == 0.0f ? 0.0f : slope;
}

float GradientB(float dy, float a, float b) {
  const float slope = dy * static_cast<float>(PowF64(a, b) * LogF64(a));
  return (a == 0.0f) & (b >= 0.0f) ? 0.0f : slope;
}

}  // namespace

void RegisterPowerCpu(KernelRegistry& registry) {
  AddBinary<Takes::kNumbers>(registry, "power", [](auto a, auto b) { return Power(a, b); });
  AddBinaryGradient</*saves_inputs=*/true>(
      registry, "power", [](float dy, float a, float b) { return GradientA(dy, a, b); },
      [](float dy, float a, float b) { return GradientB(dy, a, b); });
}

}  // namespace espalier
