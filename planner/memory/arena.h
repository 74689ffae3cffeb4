// Places buffers whose lifetimes are known at fixed offsets of one block of memory, so that those
// which are never alive together share it. Greedy by size, best gap: the method of Pisarchyk and
// Lee, "Efficient memory management for deep neural net inference" (2020).
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

constexpr int64_t kArenaAlignment = 64;

constexpr int64_t AlignUp(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// Alive from instruction `first` to instruction `last`, both included.
struct Lifetime {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct ArenaPlan {
  std::vector<int64_t> offsets;  // multiples of kArenaAlignment
  int64_t bytes = 0;             // needed with these offsets
  int64_t peak_bytes = 0;        // alive at once: no placement needs less
};

ArenaPlan PlaceInArena(const std::vector<Lifetime>& lifetimes);

}  // namespace espalier
