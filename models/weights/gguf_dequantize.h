// GGUF's element types: blocks of quantised numbers, as f32. Layouts are those of ggml.
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

// Null for a type that cannot be read.
const GgufType* FindGgufType(uint32_t id);
// "F32, F16, ..."
std::string KnownGgufTypes();

}  // namespace espalier
