// Dispatch by element size, for code that only moves elements.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "ops/cuda/math/numeric.cuh"

namespace espalier {

// Calls function(TypeTag<U>()) with the unsigned integer U of the size of an element.
template <typename Function>
KernelStatus DispatchBits(DType dtype, const char* op, Function function) {
  switch (SizeOf(dtype)) {
    case 1:
      return function(TypeTag<uint8_t>());
    case 2:
      return function(TypeTag<uint16_t>());
    case 4:
      return function(TypeTag<uint32_t>());
    case 8:
      return function(TypeTag<uint64_t>());
    default:
      return UnsupportedType(op, dtype);
  }
}

// Calls function(TypeTag<T>()) for an integer type, including i8 and u8.
template <typename Function>
KernelStatus DispatchAnyInteger(DType dtype, const char* op, Function function) {
  if (dtype == DType::kI8) return function(TypeTag<int8_t>());
  if (dtype == DType::kU8) return function(TypeTag<uint8_t>());
  return DispatchInteger(dtype, op, function);
}

// Returns the bits of `value` as an element: rounded to nearest even; integers truncated and
// clamped.
inline uint64_t BitsOf(DType dtype, double value) {
  uint64_t bits = 0;
  const auto put = [&](auto element) { std::memcpy(&bits, &element, sizeof(element)); };
  const auto integer = [&](auto zero) {
    using T = decltype(zero);
    using Limits = std::numeric_limits<T>;
    const double beyond = static_cast<double>(Limits::max() / 2 + 1) * 2;
    if (value >= beyond) return put(Limits::max());
    if (value <= static_cast<double>(Limits::min())) return put(Limits::min());
    put(value == value ? static_cast<T>(value) : zero);
  };
  switch (dtype) {
    case DType::kF32:
      put(static_cast<float>(value));
      break;
    case DType::kBF16:
      put(__float2bfloat16_rn(static_cast<float>(value)));
      break;
    case DType::kF16:
      put(__float2half_rn(static_cast<float>(value)));
      break;
    case DType::kI32:
      integer(int32_t{});
      break;
    case DType::kI64:
      integer(int64_t{});
      break;
    case DType::kI8:
      integer(int8_t{});
      break;
    case DType::kU8:
      integer(uint8_t{});
      break;
    case DType::kBool:
      put(static_cast<uint8_t>(value != 0));
      break;
    case DType::kInvalid:
      break;
  }
  return bits;
}

}  // namespace espalier
