#include <cmath>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/f64_math.h"

namespace espalier {
namespace {

struct Sin {
  static constexpr float kLimit = kAngleLimit;
  float operator()(float x) const { return FastAngle(x).sin; }
  float Exact(float x) const { return std::sin(x); }
};

struct Cos {
  static constexpr float kLimit = kAngleLimit;
  float operator()(float x) const { return FastAngle(x).cos; }
  float Exact(float x) const { return std::cos(x); }
};

struct Tan {
  static constexpr float kLimit = kAngleLimit;
  float operator()(float x) const {
    const Angle angle = FastAngle(x);
    return angle.sin / angle.cos;
  }
  float Exact(float x) const { return std::tan(x); }
};

// dx = sign * f(x) * dy
template <typename F, int sign>
struct Times {
  static constexpr float kLimit = F::kLimit;
  float operator()(float x, float dy) const { return sign * F()(x) * dy; }
  float Exact(float x, float dy) const { return sign * F().Exact(x) * dy; }
};

// 1 - x * x without loss next to 1.
float OneMinusSquare(float x) { return (1.0f - x) * (1.0f + x); }

}  // namespace

void RegisterTrigonometryCpu(KernelRegistry& registry) {
  AddUnary(registry, "sin", Sin(), Times<Cos, 1>());
  AddUnary(registry, "cos", Cos(), Times<Sin, -1>());
  AddUnary(registry, "tan", Tan(), [](float y, float dy) { return dy * (1.0f + y * y); });
  AddUnary(
      registry, "asin", [](float x) { return FastAsin(x); },
      [](float x, float dy) { return dy / std::sqrt(OneMinusSquare(x)); });
  AddUnary(
      registry, "acos", [](float x) { return FastAcos(x); },
      [](float x, float dy) { return -dy / std::sqrt(OneMinusSquare(x)); });
  AddUnary(
      registry, "atan", [](float x) { return FastAtan(x); },
      [](float x, float dy) { return dy / (1.0f + x * x); });
  AddUnary(
      registry, "sinh", [](float x) { return FastSinh(x); },
      [](float x, float dy) { return dy * FastCosh(x); });
  AddUnary(
      registry, "cosh", [](float x) { return FastCosh(x); },
      [](float x, float dy) { return dy * FastSinh(x); });
  // f64, because x * x may overflow f32.
  AddUnary(
      registry, "asinh", [](float x) { return FastAsinh(x); },
      [](float x, float dy) {
        const double v = x;
        return static_cast<float>(dy / std::sqrt(v * v + 1.0));
      });
  AddUnary(
      registry, "acosh", [](float x) { return FastAcosh(x); },
      [](float x, float dy) {
        const double v = x;
        return static_cast<float>(dy / std::sqrt(v * v - 1.0));
      });
  AddUnary(
      registry, "atanh", [](float x) { return FastAtanh(x); },
      [](float x, float dy) { return dy / OneMinusSquare(x); });
}

}  // namespace espalier
