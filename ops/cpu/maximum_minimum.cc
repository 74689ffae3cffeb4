#include "ops/cpu/binary.h"

namespace espalier {
namespace {

// A comparison with NaN is false: the NaN that is left is b, and a goes in front if it is one.
struct Maximum {
  template <typename T>
  T operator()(T a, T b) const {
    return (a > b) | (a != a) ? a : b;
  }
};

struct Minimum {
  template <typename T>
  T operator()(T a, T b) const {
    return (a < b) | (a != a) ? a : b;
  }
};

// dy for the operand `mine` unless `other` alone was chosen; a tie shares it.
float Share(float dy, float mine, float other, bool loses) {
  const float won = loses ? 0.0f : dy;
  return mine == other ? 0.5f * dy : won;
}

}  // namespace

void RegisterExtremumCpu(KernelRegistry& registry) {
  AddBinary<Takes::kNumbers>(registry, "maximum", Maximum());
  AddBinaryGradient</*saves_inputs=*/true>(
      registry, "maximum", [](float dy, float a, float b) { return Share(dy, a, b, a < b); },
      [](float dy, float a, float b) { return Share(dy, b, a, b < a); });
  AddBinary<Takes::kNumbers>(registry, "minimum", Minimum());
  AddBinaryGradient</*saves_inputs=*/true>(
      registry, "minimum", [](float dy, float a, float b) { return Share(dy, a, b, a > b); },
      [](float dy, float a, float b) { return Share(dy, b, a, b > a); });
}

}  // namespace espalier
