#include <cmath>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/f32_math.h"
#include "ops/cpu/simd/f64_math.h"

namespace espalier {
namespace {

// tanh(log(1 + e)) = n / (n + 2), with e = exp(x) and n = e * (e + 2). Beyond 20 it is 1 in f32,
// and there n * n is still finite.
float MishExp(float x) { return FastExp(x > 20.0f ? 20.0f : x); }

float Mish(float x) {
  const float e = MishExp(x);
  const float n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}

float MishGradient(float x, float dy) {
  const float e = MishExp(x);
  const float n = e * (e + 2.0f);
  const float rest = 1.0f / (n + 2.0f);
  const float slope = 4.0f * e * (e + 1.0f) * rest * rest;
  const float steep = x * slope;
  return dy * (n * rest + (slope > 0.0f ? steep : slope));  // x may be minus infinity
}

}  // namespace

void RegisterSoftplusCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "softplus", [](float x) { return FastSoftplus(x); },
      [](float x, float dy) { return dy * FastSigmoid(x); });
  AddUnary(
      registry, "softsign", [](float x) { return x / (1.0f + std::abs(x)); },
      [](float x, float dy) {
        const float r = 1.0f / (1.0f + std::abs(x));
        return dy * r * r;
      });
  AddUnary(
      registry, "mish", [](float x) { return Mish(x); },
      [](float x, float dy) { return MishGradient(x, dy); });
}

}  // namespace espalier
