// Which instructions the CPU kernels use: results repeat bit for bit only with the same ones.
#pragma once

#include <string>

namespace espalier {

// "avx512_core_amx (oneDNN), avx512": those of oneDNN's primitives, as ONEDNN_MAX_CPU_ISA may limit
// them, and those of all other kernels.
std::string CpuInstructionSet();

}  // namespace espalier
