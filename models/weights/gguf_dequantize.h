// GGUF element types: blocks of quantized numbers and their dequantization to f32. Layouts are
// ggml's.
#pragma once

#include <cstdint>
#include <string>

#include "ops/tensor/dtype.h"

namespace espalier {

struct GgufType {
  uint32_t id;
  const char* name;
  int64_t elements;  // of a block
  int64_t bytes;     // of a block
  void (*decode)(const unsigned char* block, float* out);
  DType dtype = DType::kInvalid;  // ours that is the same
};

inline constexpr uint32_t kGgufQ8_0 = 8;  // the id of Q8_0

// Returns null for an unsupported type.
const GgufType* FindGgufType(uint32_t id);
// Returns "F32, F16, ...".
std::string KnownGgufTypes();

}  // namespace espalier
