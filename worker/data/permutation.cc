#include "worker/data/permutation.h"

#include <bit>

#include "ops/kernel/philox.h"

namespace espalier {
namespace {

constexpr int kRounds = 4;

}  // namespace

int64_t ShuffledIndex(uint64_t seed, int64_t epoch, int64_t size, int64_t position) {
  if (size <= 2) {
    const uint32_t flip =
        Philox(seed, 0, static_cast<uint64_t>(epoch)).word[0] & (size == 2 ? 1u : 0u);
    return position ^ static_cast<int64_t>(flip);
  }
  const int half = (std::bit_width(static_cast<uint64_t>(size - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t value = static_cast<uint64_t>(position);
  do {
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const PhiloxBlock block =
          Philox(seed ^ (round * 0x9E3779B97F4A7C15ull), right, static_cast<uint64_t>(epoch));
      const uint64_t mixed = (uint64_t{block.word[1]} << 32) | block.word[0];
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = (left << half) | right;
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

}  // namespace espalier
