#include <limits>

#include "ops/cpu/elementwise.h"

namespace espalier {

void RegisterIsNanCpu(KernelRegistry& registry) {
  AddUnaryForward(registry, "is_nan",
                  [](const Attributes&) { return [](float x) { return x != x; }; });
  AddUnaryForward(registry, "is_inf", [](const Attributes& attributes) {
    // A sign that is not requested is compared with NaN, which is never equal.
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    return [low = attributes.Bool("detect_negative") ? -kInfinity : kNone,
            high = attributes.Bool("detect_positive") ? kInfinity : kNone](float x) -> bool {
      return (x == low) | (x == high);
    };
  });
}

}  // namespace espalier
