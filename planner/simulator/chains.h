// What a run of tasks does to the clocks of the devices, in one step.
//
// Tasks add to clocks and wait for the latest of some: linear in the algebra of maximum and sum
// (Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992). So the run is a
// matrix, entry (e, d) the longest chain of its tasks from device e before it to device d after it:
// clock d after = max over e of clock e before + entry (e, d). Exact, as times are integers.
//
// A matrix costs as much as running the tasks once for each device; it is made when they have been
// run so often without.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/simulator/task.h"

namespace espalier {

class Chains {
 public:
  // With more devices, matrices are larger than what they stand for.
  static constexpr int kMostDevices = 64;

  bool known() const { return runs_ == kKnown; }
  void Forget() { runs_ = 0; }

  // run(clocks) advances clocks by the tasks. It is called once, or for each device, or not at all.
  template <typename Run>
  void Advance(int devices, Picoseconds* clocks, const Run& run) {
    if (!known()) {
      if (devices > kMostDevices || ++runs_ < devices) return run(clocks);
      Make(devices, run);
    }
    const absl::InlinedVector<Picoseconds, 16> before(clocks, clocks + devices);
    std::fill(clocks, clocks + devices, kNever);
    const Picoseconds* entry = matrix_.data();
    for (const Picoseconds clock : before) {
      for (int d = 0; d < devices; ++d) clocks[d] = std::max(clocks[d], clock + *entry++);
    }
  }

  // The longest chain from each device before the tasks, given those after them. REQUIRES: known.
  void Precede(int devices, const Picoseconds* after, Picoseconds* before) const {
    const Picoseconds* entry = matrix_.data();
    for (int e = 0; e < devices; ++e) {
      before[e] = kNever;
      for (int d = 0; d < devices; ++d) before[e] = std::max(before[e], after[d] + *entry++);
    }
  }

 private:
  static constexpr int kKnown = std::numeric_limits<int>::max();
  // No chain. Sums of it with any times of a step neither overflow nor get near a time.
  static constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::min() / 4;

  template <typename Run>
  void Make(int devices, const Run& run) {
    matrix_.assign(static_cast<size_t>(devices) * devices, kNever);
    for (int e = 0; e < devices; ++e) {
      matrix_[e * devices + e] = 0;
      run(&matrix_[e * devices]);
    }
    runs_ = kKnown;
  }

  int runs_ = 0;  // without the matrix, or kKnown
  std::vector<Picoseconds> matrix_;
};

}  // namespace espalier
