// When to do something else than what is best as far as is known: nothing is learned of what is
// never done.
#pragma once

#include <algorithm>

namespace espalier {

class ExplorationSchedule {
 public:
  // One more time: whether to try something else. Every eighth time at first, ever more seldom
  // after many tries.
  bool Due() {
    if (++since_ < kEvery + std::clamp(tries_ - kMany, 0, kSeldom)) return false;
    since_ = 0;
    ++tries_;
    return true;
  }
  int tries() const { return tries_; }

 private:
  static constexpr int kEvery = 8;
  static constexpr int kMany = 64;  // tries; then one more time after each of them,
  static constexpr int kSeldom = 256;

  int since_ = 0, tries_ = 0;
};

}  // namespace espalier
