// Auto-vectorized loops with the vector width chosen at run time. The binary is built for plain
// x86-64; code passed to Vectorize is also compiled for AVX2 and AVX-512. For loops over plain
// formulas; kernels that manage registers by hand use simd.h. (GCC's target_clones would do the
// same through ifuncs, which run before the sanitizers are ready.)
#pragma once

#include "ops/cpu/simd/simd.h"

namespace espalier {
namespace vectorize_internal {

// `flatten` inlines f and everything it calls, so that they are compiled for this target.
template <typename F, typename... Args>
__attribute__((noinline, flatten,
               target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"))) auto
RunAvx512(F f, Args... args) {
  return f(args...);
}

template <typename F, typename... Args>
__attribute__((noinline, flatten, target("avx2,fma"))) auto RunAvx2(F f, Args... args) {
  return f(args...);
}

}  // namespace vectorize_internal

// Returns f(args...). `f` must be a function object (a lambda), so that it can be inlined, and must
// mark its loops `#pragma omp simd`. Arguments are copied: pass pointers and numbers.
template <typename F, typename... Args>
auto Vectorize(F f, Args... args) {
  switch (simd::BestIsa()) {
    case simd::Isa::kAvx512:
      return vectorize_internal::RunAvx512(f, args...);
    case simd::Isa::kAvx2:
      return vectorize_internal::RunAvx2(f, args...);
    case simd::Isa::kSse2:
      break;
  }
  return f(args...);
}

}  // namespace espalier
