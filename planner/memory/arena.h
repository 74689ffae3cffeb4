// Places buffers with known lifetimes at fixed offsets of one arena, so that buffers that are never
// alive at the same time share memory. Greedy by size, best fit (Pisarchyk and Lee, "Efficient
// memory management for deep neural net inference", 2020).
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

constexpr int64_t kArenaAlignment = 64;

constexpr int64_t AlignUp(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// Alive from instruction `first` to `last`, inclusive.
struct Lifetime {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct ArenaPlan {
  std::vector<int64_t> offsets;  // multiples of kArenaAlignment
  int64_t bytes = 0;             // needed with these offsets
  int64_t peak_bytes = 0;        // alive at once: a lower bound
};

ArenaPlan PlaceInArena(const std::vector<Lifetime>& lifetimes);

}  // namespace espalier
