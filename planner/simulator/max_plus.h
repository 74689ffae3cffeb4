// The effect of a sequence of tasks on the devices' clocks, as one matrix.
//
// Tasks add to clocks and take the maximum of several: they are linear in the (max, +) algebra
// (Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992). Entry (e, d) of the
// matrix is the longest chain of tasks from device e before the sequence to device d after it:
// clock d after = max over e of (clock e before + entry (e, d)). Exact, as times are integers.
//
// Building a matrix costs a few runs of the tasks, so it is built once they have run that often.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/simulator/task.h"

namespace espalier {

class MaxPlusMatrix {
 public:
  // With more devices, a matrix is larger than the tasks that it replaces.
  static constexpr int kMaxMatrixDevices = 64;

  bool has_matrix() const { return runs_ == kHasMatrix; }
  void Invalidate() { runs_ = 0; }

  // Advances the clocks past the tasks. for_each(visit) calls visit(task) for all tasks in order;
  // it is called at most once.
  template <typename ForEach>
  void Advance(int devices, Picoseconds* clocks, const ForEach& for_each) {
    if (!has_matrix()) {
      if (devices > kMaxMatrixDevices || ++runs_ < kRunsBeforeMatrix) {
        return for_each([clocks](const Task& task) { RunTask(task, clocks); });
      }
      Make(devices, for_each);
    }
    const absl::InlinedVector<Picoseconds, 16> before(clocks, clocks + devices);
    const Picoseconds* entry = matrix_.data();
    for (int d = 0; d < devices; ++d) {
      Picoseconds latest = kNever;
      for (int e = 0; e < devices; ++e) latest = std::max(latest, before[e] + *entry++);
      clocks[d] = latest;
    }
  }

  // Computes the longest chain from each device before the tasks, given those after them. REQUIRES:
  // has_matrix().
  void AdvanceBackward(int devices, const Picoseconds* after, Picoseconds* before) const {
    const Picoseconds* entry = matrix_.data();
    std::fill(before, before + devices, kNever);
    for (int d = 0; d < devices; ++d) {
      for (int e = 0; e < devices; ++e) before[e] = std::max(before[e], after[d] + *entry++);
    }
  }

 private:
  static constexpr int kRunsBeforeMatrix = 3;
  static constexpr int kHasMatrix = std::numeric_limits<int>::max();
  // No chain. Sums with any times of a step neither overflow nor come near a time.
  static constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::min() / 4;

  // Runs the tasks on all rows of the identity matrix at once.
  template <typename ForEach>
  void Make(int devices, const ForEach& for_each) {
    matrix_.assign(static_cast<size_t>(devices) * devices, kNever);
    for (int d = 0; d < devices; ++d) matrix_[d * devices + d] = 0;
    const auto row = [this, devices](int d) { return matrix_.data() + d * devices; };
    std::vector<Picoseconds> latest(devices);
    const auto meet = [&](const int* ranks, size_t n, Picoseconds duration) {
      std::copy_n(row(ranks[0]), devices, latest.data());
      for (size_t i = 1; i < n; ++i) {
        const Picoseconds* other = row(ranks[i]);
        for (int e = 0; e < devices; ++e) latest[e] = std::max(latest[e], other[e]);
      }
      for (int e = 0; e < devices; ++e) latest[e] += duration;
      for (size_t i = 0; i < n; ++i) std::copy_n(latest.data(), devices, row(ranks[i]));
    };
    for_each([&](const Task& task) {
      if (!task.group.empty()) {
        meet(task.group.data(), task.group.size(), task.duration);
      } else if (task.is_buffered()) {
        Picoseconds* sender = row(task.device);
        Picoseconds* receiver = row(task.peer);
        for (int e = 0; e < devices; ++e) {
          sender[e] += task.send_duration;
          receiver[e] = std::max(receiver[e], sender[e]) + task.duration;
        }
      } else if (task.peer >= 0) {
        const int pair[] = {task.device, task.peer};
        meet(pair, 2, task.duration);
      } else {
        Picoseconds* own = row(task.device);
        for (int e = 0; e < devices; ++e) own[e] += task.duration;
      }
    });
    runs_ = kHasMatrix;
  }

  int runs_ = 0;                     // runs without a matrix, or kHasMatrix
  std::vector<Picoseconds> matrix_;  // row d: entries (e, d)
};

}  // namespace espalier
