// Integer arithmetic, the same on all backends: overflow wraps, division truncates towards zero.
// The functions are constexpr, so that nvcc compiles them for the device as well.
#pragma once

#include <cstdint>
#include <type_traits>

namespace espalier {

// Returns an integer as an unsigned type whose sums and products wrap; a floating-point number
// unchanged.
template <typename T>
constexpr auto Wrapping(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x;
  } else if constexpr (sizeof(T) < sizeof(int)) {
    return static_cast<uint32_t>(x);
  } else {
    return static_cast<std::make_unsigned_t<T>>(x);
  }
}

template <typename T>
constexpr bool IsNegative(T x) {
  if constexpr (std::is_unsigned_v<T>) {
    return false;
  } else {
    return x < T();
  }
}

template <typename T>
constexpr T Negated(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return -x;
  } else {
    return static_cast<T>(0 - Wrapping(x));
  }
}

// REQUIRES: b is not 0, here and below. The least integer divided by -1 wraps to itself.
template <typename T>
constexpr T Quotient(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    const bool negates = b == static_cast<T>(-1);
    const T quotient = static_cast<T>(a / (negates ? static_cast<T>(1) : b));
    return negates ? Negated(a) : quotient;
  } else {
    return static_cast<T>(a / b);
  }
}

// a - Quotient(a, b) * b; has the sign of a.
template <typename T>
constexpr T Remainder(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(a % (b == static_cast<T>(-1) ? static_cast<T>(1) : b));
  } else {
    return static_cast<T>(a % b);
  }
}

// Converts `remainder`, which has the sign of the dividend, to the sign of the divisor b. Any
// number type.
template <typename T>
constexpr T WithSignOf(T b, T remainder) {
  const bool moves = remainder != T() && IsNegative(remainder) != IsNegative(b);
  return moves ? static_cast<T>(remainder + b) : remainder;
}

// a^b. For a negative exponent 1 / a^-b truncated towards zero, and 0 for a = 0.
template <typename T>
constexpr T IntegerPower(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b < 0) {
      if (a == 1) return 1;
      return a == -1 ? static_cast<T>(b % 2 == 0 ? 1 : -1) : T();
    }
  }
  auto base = Wrapping(a), result = Wrapping(static_cast<T>(1));
  for (; b > 0; b = static_cast<T>(b / 2)) {
    if (b % 2 != 0) result *= base;
    base *= base;
  }
  return static_cast<T>(result);
}

}  // namespace espalier
