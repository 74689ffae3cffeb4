// The bounds of the operator clip for elements of type T; for integers rounded inwards.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/kernel/attributes.h"

namespace espalier {

template <typename T>
struct ClipBounds {
  T low, high;

  static ClipBounds Of(const Attributes& attributes) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double low = attributes.Float("min", -kInfinity);
    const double high = attributes.Float("max", kInfinity);
    if constexpr (std::is_floating_point_v<T>) {
      return {static_cast<T>(low), static_cast<T>(high)};
    } else {
      return {Nearest(std::ceil(low)), Nearest(std::floor(high))};
    }
  }

 private:
  // `value` is an integer or infinite.
  static T Nearest(double value) {
    using Limits = std::numeric_limits<T>;
    if (value <= static_cast<double>(Limits::min())) return Limits::min();
    // The largest i64 is not an f64; the next f64 is one above it.
    if (value >= static_cast<double>(Limits::max())) return Limits::max();
    return static_cast<T>(value);
  }
};

}  // namespace espalier
