// Loops over the threads of OpenMP, for work that is large enough. They are the threads that oneDNN
// uses; how many is the worker's choice: omp_set_num_threads, called by the thread that makes and
// runs the kernels (the setting belongs to the calling thread).
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

// libgomp is not instrumented: ThreadSanitizer is told of its fork and join here, in a function
// that it does not look into, because the compiler's own hand-over of variables comes before the
// first call.
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#define ESPALIER_FORKS __attribute__((no_sanitize("thread"), noinline))
#else
#define ESPALIER_FORKS
#endif

namespace espalier {

// Units of cheap work (one element loaded, computed, stored) that are worth handing to a thread.
constexpr int64_t kParallelGrain = 32768;

// Calls f(begin, end) for consecutive blocks of `grain` indices that cover [0, n). The blocks
// depend on n and grain alone, never on the number of threads; a single block runs in the calling
// thread.
template <typename F>
ESPALIER_FORKS void ParallelBlocks(int64_t n, int64_t grain, const F& f) {
  if (n <= 0) return;
  const int64_t blocks = (n + grain - 1) / grain;
  if (blocks == 1) {
    f(int64_t{0}, n);
    return;
  }
#if defined(__SANITIZE_THREAD__)
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

inline int MaxThreads() { return omp_get_max_threads(); }

// Calls f(begin, end, part) for consecutive ranges that cover [0, n), one per thread, at most
// `max_parts`; `part` numbers them from 0. The ranges depend on the number of threads: for bodies
// that treat every index by itself and profit from long ranges or need memory for each part.
template <typename F>
void ParallelParts(int64_t n, int64_t work, int max_parts, const F& f) {
  if (n <= 0) return;
  const int64_t useful = n * std::max<int64_t>(work, 1) / kParallelGrain + 1;
  const int64_t parts = std::min<int64_t>({useful, n, max_parts, MaxThreads()});
  ParallelBlocks(parts, 1, [&](int64_t first, int64_t last) {
    // One call may stand for all parts only when there is one.
    f(n * first / parts, n * last / parts, static_cast<int>(first));
  });
}

// The same where f needs no memory of its own: f(begin, end).
template <typename F>
void ParallelRanges(int64_t n, int64_t work, const F& f) {
  ParallelParts(n, work, MaxThreads(), [&f](int64_t begin, int64_t end, int) { f(begin, end); });
}

}  // namespace espalier
