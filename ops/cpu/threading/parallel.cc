#include "ops/cpu/threading/parallel.h"

#include <omp.h>

#include "ops/cpu/threading/thread_team.h"
#include "ops/cpu/threading/work_stealing_ranges.h"

// libgomp is not instrumented: these annotations tell ThreadSanitizer about its fork and join. The
// function itself is not instrumented, because the compiler hands over variables before the first
// annotation.
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#define ESPALIER_FORKS __attribute__((no_sanitize("thread"), noinline))
#else
#define ESPALIER_FORKS
#endif

namespace espalier {
namespace {

// Calls each(part) for every part.
template <typename F>
ESPALIER_FORKS void OnOpenMp(int parts, const F& each) {
#if defined(__SANITIZE_THREAD__)
  char fork, join;
  __tsan_release(&fork);
#endif
#pragma omp parallel for schedule(static)
  for (int part = 0; part < parts; ++part) {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(&fork);
#endif
    each(part);
#if defined(__SANITIZE_THREAD__)
    __tsan_release(&join);
#endif
  }
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&join);
#endif
}

}  // namespace

int MaxThreads() { return omp_get_max_threads(); }

void ParallelShared(int64_t n, int parts, const void* f, SharedBody body) {
  if (n <= 0) return;
  parts = static_cast<int>(std::min<int64_t>(parts, n));
  if (parts <= 1 || InsideTeam()) return body(f, 0, n, 0);
  WorkStealingRanges ranges(n, parts);
  const auto work_off = [&](int part) {
    ranges.Drain(part, [&](int64_t begin, int64_t end) { body(f, begin, end, part); });
  };
  if (ThreadTeam* const team = OwnTeam()) return team->Run(parts, work_off);
  OnOpenMp(parts, work_off);
}

}  // namespace espalier
