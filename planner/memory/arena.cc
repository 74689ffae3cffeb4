#include "planner/memory/arena.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace espalier {
namespace {

int64_t Peak(const std::vector<Lifetime>& lifetimes) {
  std::map<int, int64_t> change;
  for (const Lifetime& life : lifetimes) {
    change[life.first] += AlignUp(life.bytes);
    change[life.last + 1] -= AlignUp(life.bytes);
  }
  int64_t alive = 0, peak = 0;
  for (const auto& [when, bytes] : change) {
    alive += bytes;
    peak = std::max(peak, alive);
  }
  return peak;
}

}  // namespace

ArenaPlan PlaceInArena(const std::vector<Lifetime>& lifetimes) {
  ArenaPlan plan;
  plan.offsets.assign(lifetimes.size(), 0);
  plan.peak_bytes = Peak(lifetimes);

  std::vector<int> order(lifetimes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return lifetimes[a].bytes > lifetimes[b].bytes; });

  struct Placed {
    int64_t offset;
    int64_t end;
    int first;
    int last;
  };
  std::vector<Placed> placed;  // ordered by offset
  for (int i : order) {
    const Lifetime& life = lifetimes[i];
    const int64_t size = AlignUp(life.bytes);
    int64_t best = -1, best_gap = 0, free_from = 0;
    for (const Placed& other : placed) {
      if (other.last < life.first || life.last < other.first) continue;
      const int64_t gap = other.offset - free_from;
      if (gap >= size && (best < 0 || gap < best_gap)) {
        best = free_from;
        best_gap = gap;
      }
      free_from = std::max(free_from, other.end);
    }
    if (best < 0) best = free_from;
    plan.offsets[i] = best;
    plan.bytes = std::max(plan.bytes, best + size);
    const Placed entry{best, best + size, life.first, life.last};
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), entry,
                         [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
        entry);
  }
  return plan;
}

}  // namespace espalier
