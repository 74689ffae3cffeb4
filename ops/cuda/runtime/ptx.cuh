// Device functions in PTX, and what only nvcc understands. tests/gpu/emulation, which runs kernels
// without a GPU, defines ESPALIER_CUDA_PTX_HEADER as the path of a header that replaces them.
#pragma once

#ifdef ESPALIER_CUDA_PTX_HEADER
#include ESPALIER_CUDA_PTX_HEADER
#else

#include <cstdint>

namespace espalier {

// Programmatic dependent launch (PDL), PTX griddepcontrol. A kernel launched by LaunchWithPdl may
// begin before the previous kernels end. It must call WaitOnDependentGrids, which returns when they
// have ended, before it touches what kernels of the same step write. LaunchDependentGrids lets the
// next kernel begin as soon as all blocks of this one have called it.
__device__ __forceinline__ void LaunchDependentGrids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void WaitOnDependentGrids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The block's dynamic shared memory.
__device__ __forceinline__ uint4* DynamicSharedMemory() {
  extern __shared__ uint4 launched_memory[];
  return launched_memory;
}

// c += a b for bf16 a[16, 16] and b[16, 8]; kFirst: c = a b. Fragments as PTX defines them for
// mma.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16"): with groupID g = lane / 4 and
// threadID_in_group t = lane % 4, a lane holds rows g and g + 8 of a and column g of b, at
// k = 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, and columns 2 t and 2 t + 1 of c. wgmma gives the same
// bits (measured on an H200).
template <bool kFirst = false>
__device__ __forceinline__ void MmaM16N8K16Bf16(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                                float (&c)[4]) {
  if constexpr (kFirst) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%10,%10,%10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Returns 2^x to within two units in the last place; results below 2^-126 are 0.
__device__ __forceinline__ float FastExp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Prefetches 128 bytes of global memory at `from` into L2.
__device__ __forceinline__ void PrefetchToL2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

}  // namespace espalier

#endif
