// The best distinct placements that a search came across, for a more exact evaluation afterwards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "planner/pcg/placement.h"
#include "planner/simulator/task.h"

namespace espalier {

struct RankedPlacement {
  Picoseconds cost = 0;  // including the memory penalty
  Picoseconds time = 0;
  Placement placement;
};

class TopPlacements {
 public:
  // Keeps at most `most` placements.
  explicit TopPlacements(size_t most) : most_(most) {}

  // Of placements with the same cost and time (mostly permutations of equal devices) keeps the
  // first.
  void Offer(Picoseconds cost, Picoseconds time, const Placement& placement) {
    if (most_ == 0 || (all_.size() == most_ && cost >= all_.back().cost)) return;
    const auto at = std::lower_bound(
        all_.begin(), all_.end(), std::pair(cost, time),
        [](const RankedPlacement& r, const auto& key) { return std::pair(r.cost, r.time) < key; });
    if (at != all_.end() && at->cost == cost && at->time == time) return;
    if (all_.size() < most_) {
      all_.insert(at, {cost, time, placement});
      return;
    }
    // Reuse the memory of the dropped placement.
    RankedPlacement last = std::move(all_.back());
    last.cost = cost;
    last.time = time;
    last.placement = placement;
    std::move_backward(at, all_.end() - 1, all_.end());
    *at = std::move(last);
  }

  const std::vector<RankedPlacement>& all() const { return all_; }  // cheapest first

 private:
  const size_t most_;
  std::vector<RankedPlacement> all_;
};

}  // namespace espalier
