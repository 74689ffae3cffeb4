// Parallel loops. They run on OpenMP's threads, which oneDNN uses, too, or on the calling thread's
// own ThreadTeam if it asked for one (thread_team.h). The worker sets the number of threads with
// omp_set_num_threads in the thread that makes and runs the kernels (the setting is per thread).
// Threads steal work from each other, so a thread that starts late does less.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace espalier {

// Units of cheap work (one element loaded, computed, stored) that justify waking a thread.
constexpr int64_t kParallelGrain = 32768;
// Minimum units that a running thread takes at once: the most by which threads may end apart.
constexpr int64_t kParallelPiece = kParallelGrain / 8;

// Number of threads of the loops that the calling thread runs.
int MaxThreads();

using SharedBody = void (*)(const void* f, int64_t begin, int64_t end, int part);
void ParallelShared(int64_t n, int parts, const void* f, SharedBody body);

// Calls f(begin, end, part) for ranges that cover [0, n), n < 2^31, from at most `parts` threads.
// All calls by one thread have the same `part`, numbered from 0. The ranges depend on timing.
template <typename F>
void ParallelShared(int64_t n, int parts, const F& f) {
  ParallelShared(n, parts, &f, [](const void* body, int64_t begin, int64_t end, int part) {
    (*static_cast<const F*>(body))(begin, end, part);
  });
}

// Calls f(begin, end) for consecutive blocks of `grain` indices that cover [0, n). The blocks
// depend on n and grain alone, never on the number of threads; a single block runs in the calling
// thread.
template <typename F>
void ParallelBlocks(int64_t n, int64_t grain, const F& f) {
  ParallelShared((n + grain - 1) / grain, MaxThreads(), [&](int64_t begin, int64_t end, int) {
    for (int64_t block = begin; block < end; ++block) {
      f(block * grain, std::min(n, (block + 1) * grain));
    }
  });
}

// ParallelBlocks with a grain of kParallelGrain units, where each index is `work` units.
template <typename F>
void ParallelFor(int64_t n, int64_t work, const F& f) {
  ParallelBlocks(n, std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, work)), f);
}

// Calls f(begin, end, part) for ranges that cover [0, n), from at most `max_parts` threads, each
// with a `part` of its own, numbered from 0. The ranges depend on the threads and on timing: for
// bodies that treat every index by itself and profit from long ranges or need memory for each part.
template <typename F>
void ParallelParts(int64_t n, int64_t work, int max_parts, const F& f) {
  if (n <= 0) return;
  work = std::max<int64_t>(work, 1);
  const int64_t useful = n * work / kParallelGrain + 1;
  const int parts = static_cast<int>(std::min<int64_t>({useful, n, max_parts, MaxThreads()}));
  // Indices taken at once, at least.
  const int64_t some =
      parts == 1 ? n : std::clamp<int64_t>(kParallelPiece / work, 1, (n + parts - 1) / parts);
  ParallelShared((n + some - 1) / some, parts, [&](int64_t begin, int64_t end, int part) {
    f(begin * some, std::min(n, end * some), part);
  });
}

// As above, with f(begin, end), for bodies that need no memory per part.
template <typename F>
void ParallelRanges(int64_t n, int64_t work, const F& f) {
  ParallelParts(n, work, MaxThreads(), [&f](int64_t begin, int64_t end, int) { f(begin, end); });
}

// Loops over several arrays at once: calls f(which, begin, end) for ranges that cover
// [0, sizes[which]) of each.
template <typename F>
void ParallelArrays(std::span<const int64_t> sizes, int64_t work, const F& f) {
  int64_t n = 0;
  for (const int64_t size : sizes) n += size;
  ParallelRanges(n, work, [&](int64_t begin, int64_t end) {
    int64_t before = 0;
    for (size_t which = 0; which < sizes.size() && before < end; before += sizes[which++]) {
      const int64_t first = std::max(begin, before), last = std::min(end, before + sizes[which]);
      if (first < last) f(which, first - before, last - before);
    }
  });
}

}  // namespace espalier
