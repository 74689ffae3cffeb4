// Element types as C++ types: storage, and conversion to and from a number.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/cpu/dtype/convert.h"
#include "ops/tensor/dtype.h"

namespace espalier {

// Truncates towards zero and clamps to the range of Integer; NaN becomes 0.
template <typename Integer, typename Number>
Integer ToInteger(Number value) {
  if constexpr (std::is_floating_point_v<Number>) {
    using Limits = std::numeric_limits<Integer>;
    if (value != value) return 0;
    // The largest integers may have no float of their own: the first one beyond them is a power
    // of 2.
    const Number beyond = static_cast<Number>(Limits::max() / 2 + 1) * 2;
    if (value >= beyond) return Limits::max();
    if (value <= static_cast<Number>(Limits::min())) return Limits::min();
  }
  return static_cast<Integer>(value);  // of an integer: modulo 2^n, as in C and PyTorch
}

struct F32Element {
  using Storage = float;
  static float Value(float stored) { return stored; }
  template <typename N>
  static float From(N value) {
    return static_cast<float>(value);
  }
};

struct BF16Element {
  using Storage = uint16_t;
  static float Value(uint16_t stored) { return BF16ToF32(stored); }
  template <typename N>
  static uint16_t From(N value) {
    return F32ToBF16(static_cast<float>(value));
  }
};

struct F16Element {
  using Storage = uint16_t;
  static float Value(uint16_t stored) { return F16ToF32(stored); }
  template <typename N>
  static uint16_t From(N value) {
    return F32ToF16(static_cast<float>(value));
  }
};

template <typename Integer>
struct IntegerElement {
  using Storage = Integer;
  static Integer Value(Integer stored) { return stored; }
  template <typename N>
  static Integer From(N value) {
    return ToInteger<Integer>(value);
  }
};

// Stored as a byte; any that is not 0 is true.
struct BoolElement {
  using Storage = uint8_t;
  static int32_t Value(uint8_t stored) { return stored != 0; }
  template <typename N>
  static uint8_t From(N value) {
    return value != 0;
  }
};

// Calls f with a value of the struct above for `type`. Does nothing for kInvalid.
template <typename F>
void WithElement(DType type, const F& f) {
  switch (type) {
    case DType::kF32:
      return f(F32Element());
    case DType::kBF16:
      return f(BF16Element());
    case DType::kF16:
      return f(F16Element());
    case DType::kI32:
      return f(IntegerElement<int32_t>());
    case DType::kI64:
      return f(IntegerElement<int64_t>());
    case DType::kBool:
      return f(BoolElement());
    case DType::kI8:
      return f(IntegerElement<int8_t>());
    case DType::kU8:
      return f(IntegerElement<uint8_t>());
    case DType::kInvalid:
      return;
  }
}

// Calls f with an unsigned integer of the size of an element, for code that only moves elements.
template <typename F>
void WithBits(DType type, const F& f) {
  switch (SizeOf(type)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
  }
}

}  // namespace espalier
