// Loops over the threads of OpenMP, which oneDNN uses, too, or, where the thread that runs the
// kernels asked for it, of a team of its own (thread_team.h). How many is the worker's choice:
// omp_set_num_threads, called by the thread that makes and runs the kernels (the setting belongs to
// the calling thread). Either way threads share what there is to do: one that is late takes less.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace espalier {

// Units of cheap work (one element loaded, computed, stored) that are worth handing to a thread.
constexpr int64_t kParallelGrain = 32768;
// Of it what a thread takes at once, at least, when it has begun: so much later may one end.
constexpr int64_t kParallelPiece = kParallelGrain / 8;

// Threads of the loops that the calling thread runs.
int MaxThreads();

using SharedBody = void (*)(const void* f, int64_t begin, int64_t end, int part);
void ParallelShared(int64_t n, int parts, const void* f, SharedBody body);

// Calls f(begin, end, part) for ranges that cover [0, n), n < 2^31, from at most `parts` threads;
// those called by one thread have one `part`, numbered from 0. The ranges depend on timing.
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

// The same with blocks of as many indices as make up kParallelGrain units, each index being `work`
// units.
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
  // Taken at once, at least.
  const int64_t some =
      parts == 1 ? n : std::clamp<int64_t>(kParallelPiece / work, 1, (n + parts - 1) / parts);
  ParallelShared((n + some - 1) / some, parts, [&](int64_t begin, int64_t end, int part) {
    f(begin * some, std::min(n, end * some), part);
  });
}

// The same where f needs no memory of its own: f(begin, end).
template <typename F>
void ParallelRanges(int64_t n, int64_t work, const F& f) {
  ParallelParts(n, work, MaxThreads(), [&f](int64_t begin, int64_t end, int) { f(begin, end); });
}

// The same for several arrays at once: f(which, begin, end) for ranges that cover [0, sizes[which])
// of each.
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
