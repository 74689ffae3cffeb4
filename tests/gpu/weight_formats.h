// The formats of weights that serving multiplies with f32 rows.
#pragma once

#include <string>
#include <vector>

#include "ops/tensor/dtype.h"

namespace espalier::gpu_check {

// Weights of 32 bits, 16 (bf16 or f16), or packed in 8 or 4 (ops/kernel/packed_weights.h).
struct Weights {
  int bits;
  DType dtype;

  std::string Name() const {
    return bits < 16 ? std::to_string(bits) + " bits" : espalier::Name(dtype);
  }
};

inline const std::vector<Weights> kNarrowWeights = {
    {16, DType::kBF16}, {16, DType::kF16}, {8, DType::kU8}, {4, DType::kU8}};

}  // namespace espalier::gpu_check
