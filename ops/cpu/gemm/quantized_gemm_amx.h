// QuantizedGemm by AMX tiles of 16 rows and 16 outputs. A group of packed 8-bit weights has the
// layout of such a tile in memory; 4 bits are unpacked once for all rows. Sums within a group are
// integers, and groups are added as in quantized_gemm.cc, so results equal those of the other
// instruction sets bit for bit.
#pragma once

#include <cstdint>

#include "ops/cpu/gemm/quantized_gemm.h"

namespace espalier {

// As QuantizedGemm. REQUIRES: amx::Available().
void QuantizedGemmAmx(const PackedWeights& shape, const uint8_t* weights, const QuantizedRows& x,
                      int64_t begin, int64_t end, float* y);

}  // namespace espalier
