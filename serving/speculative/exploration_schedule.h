// When to explore instead of taking the best known choice (explore/exploit).
#pragma once

#include <algorithm>

namespace espalier {

class ExplorationSchedule {
 public:
  // Call once per step. Returns true if this step should explore: every eighth step at first, more
  // rarely after many explorations.
  bool Due() {
    if (++since_ < kEvery + std::clamp(tries_ - kMany, 0, kSeldom)) return false;
    since_ = 0;
    ++tries_;
    return true;
  }
  int tries() const { return tries_; }

 private:
  static constexpr int kEvery = 8;
  // explorations, after which each one makes the interval one step longer, up to kSeldom
  static constexpr int kMany = 64;
  static constexpr int kSeldom = 256;

  int since_ = 0, tries_ = 0;
};

}  // namespace espalier
