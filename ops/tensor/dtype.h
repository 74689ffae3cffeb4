// Element types of tensors. Standard library only: the CUDA plug-in includes this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace espalier {

enum class DType : uint8_t { kInvalid = 0, kF32, kBF16, kF16, kI32, kI64, kBool, kI8, kU8 };

constexpr DType kAllDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32,
                                DType::kI64, DType::kBool, DType::kI8,  DType::kU8};

constexpr size_t SizeOf(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kI64:
      return 8;
    case DType::kBool:
    case DType::kI8:
    case DType::kU8:
      return 1;
    case DType::kInvalid:
      break;
  }
  return 0;
}

constexpr bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kBF16 || type == DType::kF16;
}

// The 16-bit floating-point types.
constexpr bool IsNarrow(DType type) { return type == DType::kBF16 || type == DType::kF16; }

constexpr bool IsInteger(DType type) {
  return type == DType::kI32 || type == DType::kI64 || type == DType::kI8 || type == DType::kU8;
}

constexpr const char* Name(DType type) {
  switch (type) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kBool:
      return "bool";
    case DType::kI8:
      return "i8";
    case DType::kU8:
      return "u8";
    case DType::kInvalid:
      break;
  }
  return "invalid";
}

// The inverse of Name; kInvalid for other names.
inline DType DTypeFromName(const std::string& name) {
  for (DType type : kAllDTypes) {
    if (name == Name(type)) return type;
  }
  return DType::kInvalid;
}

}  // namespace espalier
