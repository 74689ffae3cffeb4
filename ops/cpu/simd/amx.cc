#include "ops/cpu/simd/amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ops/cpu/simd/simd.h"

namespace espalier::amx {
namespace {

// Linux saves tile state (8 KiB per thread) only for processes that request it (arch_prctl).
constexpr long kRequestPermission = 0x1023;
constexpr unsigned long kTileData = 18;

bool Ask() {
  if (simd::BestIsa() != simd::Isa::kAvx512 || !__builtin_cpu_supports("avx512vnni")) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBF16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr unsigned kAll = kBF16 | kTile | kInt8;
  if ((d & kAll) != kAll) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool Available() {
  static const bool available = Ask();
  return available;
}

}  // namespace espalier::amx
