// reduce_min and reduce_max of any element type. The result is NaN if an element is.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "ops/cpu/reduce.h"

namespace espalier {

template <typename T>
struct Lowest {
  static constexpr T kValue = std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity()
                                                          : std::numeric_limits<T>::lowest();
};
template <typename T>
struct Highest {
  static constexpr T kValue = std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity()
                                                          : std::numeric_limits<T>::max();
};

// `beyond(a, b)`: whether a is more extreme than b; Start<T>::kValue is the least extreme value.
template <template <typename> class Start, typename Beyond>
void AddExtreme(KernelRegistry& registry, const std::string& name, Beyond beyond) {
  const auto run = [beyond](const Attributes& attributes, const TensorView& x,
                            const TensorView& y) {
    const auto fold = [&](auto start, auto load) {
      using T = decltype(start);
      FoldInto<T>(attributes, x, y, start, load,
                  [beyond](T a, T b) { return beyond(b, a) || b != b ? b : a; });
    };
    const auto as_is = [](auto v) { return v; };
    switch (x.dtype()) {
      case DType::kI32:
        return fold(Start<int32_t>::kValue, as_is);
      case DType::kI64:
        return fold(Start<int64_t>::kValue, as_is);
      case DType::kI8:
        return fold(Start<int8_t>::kValue, as_is);
      case DType::kU8:
        return fold(Start<uint8_t>::kValue, as_is);
      case DType::kBool:
        return fold(static_cast<uint8_t>(Start<uint8_t>::kValue != 0),
                    [](uint8_t v) { return static_cast<uint8_t>(v != 0); });
      default:
        return fold(Start<float>::kValue, as_is);
    }
  };
  // x, y, dy
  const auto gradient = [](const Attributes& attributes, std::span<const TensorView> operands,
                           const TensorView& dx) {
    const TensorView &x = operands[0], &y = operands[1], &dy = operands[2];
    const int64_t count = y.num_elements();
    std::vector<float> share(count);
    SumAxes(
        attributes, x, y.as<float>(), [](float v, float most) { return v == most ? 1.0f : 0.0f; },
        1.0, share.data(), count);
    for (int64_t o = 0; o < count; ++o) share[o] = dy.as<float>()[o] / share[o];
    SpreadAxes(attributes, x.as<float>(), y.as<float>(), share.data(), dx,
               [](float v, float most, float part) { return v == most ? part : 0.0f; });
  };
  AddFold(registry, name, run, gradient);
}

}  // namespace espalier
