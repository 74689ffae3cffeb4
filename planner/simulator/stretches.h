// What stretches of consecutive positions do to the clocks of the devices, each in one step.
//
// Tasks add to clocks and wait for the latest of some: linear in the algebra of maximum and sum
// (Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992). So a stretch is a
// matrix, entry (e, d) the longest chain of its tasks from device e before it to device d after it:
// clock d after = max over e of clock e before + entry (e, d). Exact, as times are integers.
//
// A matrix costs as much as running the stretch once for each device; it is made when the stretch
// has been run so often without.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "planner/simulator/task.h"

namespace espalier {

class Stretches {
 public:
  Stretches(int positions, int devices)
      : devices_(devices),
        length_(std::clamp(devices / 2, 4, kMostDevices / 2)),
        count_((positions + length_ - 1) / length_),
        positions_(positions),
        runs_(count_, 0),
        matrices_(count_) {}

  int count() const { return count_; }
  int Of(int position) const { return position / length_; }
  int Begin(int stretch) const { return stretch * length_; }
  int End(int stretch) const { return std::min(positions_, (stretch + 1) * length_); }

  bool Known(int stretch) const { return runs_[stretch] == kKnown; }
  void Forget(int stretch) { runs_[stretch] = 0; }

  // run(clocks) advances clocks by the stretch. It is called once, or for each device, or not at
  // all.
  template <typename Run>
  void Advance(int stretch, Picoseconds* clocks, const Run& run) {
    if (!Known(stretch)) {
      if (devices_ > kMostDevices || ++runs_[stretch] < devices_) return run(clocks);
      Make(stretch, run);
    }
    scratch_.assign(clocks, clocks + devices_);
    std::fill(clocks, clocks + devices_, kNever);
    const Picoseconds* entry = matrices_[stretch].data();
    for (int e = 0; e < devices_; ++e) {
      const Picoseconds before = scratch_[e];
      for (int d = 0; d < devices_; ++d) clocks[d] = std::max(clocks[d], before + *entry++);
    }
  }

  // The longest chain from each device before the known stretch, given those after it.
  void Precede(int stretch, const Picoseconds* after, Picoseconds* before) const {
    const Picoseconds* entry = matrices_[stretch].data();
    for (int e = 0; e < devices_; ++e) {
      before[e] = kNever;
      for (int d = 0; d < devices_; ++d) before[e] = std::max(before[e], after[d] + *entry++);
    }
  }

 private:
  static constexpr int kMostDevices = 64;  // more: matrices get larger than what they stand for
  static constexpr int kKnown = std::numeric_limits<int>::max();
  // No chain. Sums of it with any times of a step neither overflow nor get near a time.
  static constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::min() / 4;

  template <typename Run>
  void Make(int stretch, const Run& run) {
    std::vector<Picoseconds>& matrix = matrices_[stretch];
    matrix.assign(static_cast<size_t>(devices_) * devices_, kNever);
    for (int e = 0; e < devices_; ++e) {
      matrix[e * devices_ + e] = 0;
      run(&matrix[e * devices_]);
    }
    runs_[stretch] = kKnown;
  }

  const int devices_, length_, count_, positions_;
  std::vector<int> runs_;  // without the matrix, or kKnown
  std::vector<std::vector<Picoseconds>> matrices_;
  std::vector<Picoseconds> scratch_;
};

}  // namespace espalier
