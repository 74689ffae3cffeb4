// Replaces ops/cuda/runtime/ptx.cuh for g++: implements device instructions by simt_emulator.h.
#pragma once

// Must come before CUDA's headers, which define these for host compilers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#define __device__
#define __global__
#define __shared__ static  // blocks run one after the other
#define __forceinline__ inline
#define __launch_bounds__(...)

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/gpu/emulation/simt_emulator.h"

#define threadIdx (::espalier::emulation::Current().thread)
#define blockIdx (::espalier::emulation::Current().block)
#define gridDim (::espalier::emulation::Current().grid)

namespace espalier {

using std::isfinite;
using std::max;
using std::min;

inline void LaunchDependentGrids() {}
inline void WaitOnDependentGrids() {}
inline uint4* DynamicSharedMemory() { return static_cast<uint4*>(emulation::SharedMemory()); }
inline void PrefetchToL2(const void*) {}
inline float FastExp2(float x) { return std::exp2(x); }

inline void __syncthreads() { emulation::MeetInBlock(); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __syncwarp() {
  const char nothing = 0;
  emulation::MeetInWarp(&nothing, 1);
}

// To be called by all lanes of a warp, as the kernels do.
template <typename T>
T __shfl_sync(uint32_t, T value, int lane) {
  return static_cast<const T*>(emulation::MeetInWarp(&value, sizeof(T)))[lane];
}
template <typename T>
T __shfl_xor_sync(uint32_t, T value, int mask) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  return static_cast<const T*>(emulation::MeetInWarp(&value, sizeof(T)))[lane ^ mask];
}
inline uint32_t __ballot_sync(uint32_t, bool value) {
  const auto* const all = static_cast<const bool*>(emulation::MeetInWarp(&value, 1));
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= static_cast<uint32_t>(all[lane]) << lane;
  return bits;
}
inline bool __all_sync(uint32_t mask, bool value) {
  return __ballot_sync(mask, value) == 0xffffffffu;
}

inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(x)) + 1; }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = selector >> 4 * i & 7;
    result |= static_cast<uint32_t>(bytes >> 8 * byte & 0xff) << 8 * i;
  }
  return result;
}
inline uint32_t atomicInc(uint32_t* at, uint32_t most) {
  const uint32_t before = *at;
  *at = before >= most ? 0 : before + 1;
  return before;
}
inline int32_t atomicCAS(int32_t* at, int32_t compare, int32_t value) {
  const int32_t before = *at;
  if (before == compare) *at = value;
  return before;
}

template <bool kFirst = false>
void MmaM16N8K16Bf16(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  struct Given {
    float a[4][2], b[2][2];
  };
  const auto split = [](uint32_t pair, float(&to)[2]) {
    to[0] = std::bit_cast<float>(pair << 16);
    to[1] = std::bit_cast<float>(pair & 0xffff0000u);
  };
  Given own;
  for (int i = 0; i < 4; ++i) split(a[i], own.a[i]);
  split(b0, own.b[0]);
  split(b1, own.b[1]);
  const auto* const all = static_cast<const Given*>(emulation::MeetInWarp(&own, sizeof(own)));
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const Given *const row = all + 4 * g, *const column = all + 4 * (2 * t + i % 2);
    double sum = kFirst ? 0.0 : static_cast<double>(c[i]);
    // Lane t of a row, or of a column, holds k = 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 (PTX ISA).
    for (int k = 0; k < 16; ++k) {
      const int owner = k % 8 / 2, far = k / 8;
      sum += static_cast<double>(row[owner].a[i / 2 + 2 * far][k % 2]) *
             static_cast<double>(column[owner].b[far][k % 2]);
    }
    c[i] = static_cast<float>(sum);
  }
}

}  // namespace espalier
