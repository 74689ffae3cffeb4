#include <cmath>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/simd/f32_math.h"

namespace espalier {
namespace {

float Erf(float x) {
  const float magnitude = std::abs(x);
  const float z = x * x;
  float p = 7.889037806307897e-05f;
  p = p * z - 0.0008020816603675485f;
  p = p * z + 0.0051895324140787125f;
  p = p * z - 0.026854442432522774f;
  p = p * z + 0.11283600330352783f;
  p = p * z - 0.3761262595653534f;
  p = p * z + 0.12837916f;
  const float near = x + x * p;
  const float far = 1.0f - 2.0f * FastNormal(-1.41421356237f * magnitude).cumulative;
  return magnitude < 1.0f ? near : std::copysign(far, x);
}

}  // namespace

void RegisterErfCpu(KernelRegistry& registry) {
  AddUnary(
      registry, "erf", [](float x) { return Erf(x); },
      [](float x, float dy) { return dy * (1.12837916710f * FastExp(-x * x)); });
}

}  // namespace espalier
