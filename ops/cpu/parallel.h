// Loops over the threads of OpenMP, for work that is large enough.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#endif

namespace espalier {

// Units of cheap work (one element loaded, computed, stored) that are worth handing to a thread.
constexpr int64_t kParallelGrain = 32768;

// Calls f(begin, end) for consecutive blocks of `grain` indices that cover [0, n). The blocks
// depend on n and grain alone, never on the number of threads; a single block runs in the calling
// thread.
template <typename F>
void ParallelBlocks(int64_t n, int64_t grain, const F& f) {
  if (n <= 0) return;
  const int64_t blocks = (n + grain - 1) / grain;
  if (blocks == 1) {
    f(int64_t{0}, n);
    return;
  }
#if defined(__SANITIZE_THREAD__)
  // libgomp is not instrumented: tell the sanitizer of its fork and join.
  char fork, join;
  __tsan_release(&fork);
#endif
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(&fork);
#endif
    f(block * grain, std::min(n, (block + 1) * grain));
#if defined(__SANITIZE_THREAD__)
    __tsan_release(&join);
#endif
  }
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&join);
#endif
}

// The same with blocks of as many indices as make up kParallelGrain units, each index being `work`
// units.
template <typename F>
void ParallelFor(int64_t n, int64_t work, const F& f) {
  ParallelBlocks(n, std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, work)), f);
}

}  // namespace espalier
