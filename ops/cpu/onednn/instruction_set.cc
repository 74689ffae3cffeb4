#include "ops/cpu/onednn/instruction_set.h"

#include <dnnl.hpp>

#include "ops/cpu/simd/simd.h"

namespace espalier {
namespace {

std::string OneDnnInstructions() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  switch (isa) {
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    default:  // of another release of oneDNN
      return "isa " + std::to_string(static_cast<int>(isa));
  }
}

std::string OtherInstructions() {
  switch (simd::BestIsa()) {
    case simd::Isa::kAvx512:
      return "avx512";
    case simd::Isa::kAvx2:
      return "avx2";
    case simd::Isa::kSse2:
      return "sse2";
  }
  return "";
}

}  // namespace

std::string CpuInstructionSet() {
  return OneDnnInstructions() + " (oneDNN), " + OtherInstructions();
}

}  // namespace espalier
