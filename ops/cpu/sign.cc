#include <cmath>
#include <type_traits>

#include "ops/cpu/elementwise.h"

namespace espalier {
namespace {

struct Sign {
  template <typename T>
  T operator()(T x) const {
    const T sign = static_cast<T>((x > T()) - IsNegative(x));
    return x == x ? sign : x;
  }
};

struct Abs {
  template <typename T>
  T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::abs(x);
    } else {
      return IsNegative(x) ? Negated(x) : x;
    }
  }
};

}  // namespace

void RegisterSignCpu(KernelRegistry& registry) {
  AddUnary<Takes::kNumbers>(
      registry, "neg", [](auto x) { return Negated(x); }, [](float dy) { return -dy; });
  AddUnary<Takes::kNumbers>(registry, "abs", Abs(), [](float x, float dy) {
    const float sign = static_cast<float>((x > 0.0f) - (x < 0.0f));
    return dy * sign;
  });
  AddUnary<Takes::kNumbers>(registry, "sign", Sign(), [](float) { return 0.0f; });
}

}  // namespace espalier
