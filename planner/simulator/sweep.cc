// Simulator: sweeps the tasks of a step in program order. FullTime sweeps all of them, DeltaTime
// only the segments that a proposal has changed.
#include <algorithm>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/simulator/gradient_sync.h"
#include "planner/simulator/schedule.h"

namespace espalier {

void Simulator::RunPositions(int begin, int end, Picoseconds* clocks) const {
  for (int p = begin; p < end; ++p) {
    ForEachTaskOf(p, [clocks](const Task& task) { RunTask(task, clocks); });
  }
}

int Simulator::SegmentEnd(int segment) const {
  return std::min(static_cast<int>(structure_.positions.size()), SegmentBegin(segment + 1));
}

// Advances the clocks past a segment that is unchanged from the accepted placement.
void Simulator::Advance(int segment, Picoseconds* clocks) {
  segments_[segment].Advance(devices_, clocks, [this, segment](const auto& visit) {
    for (int p = SegmentBegin(segment); p < SegmentEnd(segment); ++p) ForEachTaskOf(p, visit);
  });
}

void Simulator::ExtendClocks(int row) {
  for (; clocks_known_ < row; ++clocks_known_) {
    Picoseconds* from = &clocks_[clocks_known_ * devices_];
    std::copy(from, from + devices_, from + devices_);
    Advance(clocks_known_, from + devices_);
  }
}

void Simulator::ExtendRemaining(int row) {
  const int count = num_segments();
  // Before a task, a device's remaining time is the task's duration plus the longest remaining time
  // of its participants.
  const auto before = [](const int* ranks, size_t n, Picoseconds duration, Picoseconds* remaining) {
    Picoseconds longest = 0;
    for (size_t i = 0; i < n; ++i) longest = std::max(longest, remaining[ranks[i]]);
    for (size_t i = 0; i < n; ++i) remaining[ranks[i]] = longest + duration;
  };
  const auto before_task = [&before](const Task& task, Picoseconds* remaining) {
    const int pair[] = {task.device, task.peer};
    if (!task.group.empty()) {
      before(task.group.data(), task.group.size(), task.duration, remaining);
    } else if (task.is_buffered()) {
      remaining[task.peer] += task.duration;
      remaining[task.device] =
          std::max(remaining[task.device], remaining[task.peer]) + task.send_duration;
    } else {
      before(pair, task.peer >= 0 ? 2 : 1, task.duration, remaining);
    }
  };
  if (remaining_known_ > count) {
    struct TailStep {
      const Task* task;  // or a collective
      const int* ranks;
      size_t n;
      Picoseconds duration;
    };
    std::vector<TailStep> steps;
    ForEachSyncTask([&](const Task& task, SyncPhase, int) { steps.push_back({&task}); },
                    [&](const std::vector<int>& ranks, Picoseconds duration, double) {
                      steps.push_back({nullptr, ranks.data(), ranks.size(), duration});
                    });
    Picoseconds* remaining = &remaining_[count * devices_];
    std::fill(remaining, remaining + devices_, 0);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      if (step->task != nullptr) {
        before_task(*step->task, remaining);
      } else {
        before(step->ranks, step->n, step->duration, remaining);
      }
    }
    remaining_known_ = count;
  }
  absl::InlinedVector<const Task*, 64> tasks;
  while (remaining_known_ > row) {
    const Picoseconds* after = &remaining_[remaining_known_ * devices_];
    --remaining_known_;
    Picoseconds* remaining = &remaining_[remaining_known_ * devices_];
    if (segments_[remaining_known_].has_matrix()) {
      segments_[remaining_known_].AdvanceBackward(devices_, after, remaining);
      continue;
    }
    std::copy(after, after + devices_, remaining);
    tasks.clear();
    for (int p = SegmentBegin(remaining_known_); p < SegmentEnd(remaining_known_); ++p) {
      ForEachTaskOf(p, [&tasks](const Task& task) { tasks.push_back(&task); });
    }
    for (auto task = tasks.rbegin(); task != tasks.rend(); ++task) before_task(**task, remaining);
  }
}

// Runs what follows the backward pass, from these clocks on.
Picoseconds Simulator::RunGradientSync(Picoseconds* clocks) {
  ForEachSyncTask([&](const Task& task, SyncPhase, int) { RunTask(task, clocks); },
                  [&](const std::vector<int>& ranks, Picoseconds duration, double) {
                    Picoseconds start = 0;
                    for (int device : ranks) start = std::max(start, clocks[device]);
                    for (int device : ranks) clocks[device] = start + duration;
                  });
  return *std::max_element(clocks, clocks + devices_);
}

// For hosts with CPU contention.
Picoseconds Simulator::ContendedTime() {
  contended_tasks_.clear();
  contended_collectives_.clear();
  const auto add = [this](const Task& task) { contended_tasks_.push_back(&task); };
  if (structure_.micro_batches > 1) {
    ForEachScheduled(
        [&](const TaskList& tasks, int) {
          for (const Task& task : tasks) add(task);
        },
        [&](int p, int micro_batch) {
          for (const Task& task : *position_tasks_[p]) add(task);
          for (const TaskList* tasks : AccumulationsOf(p, micro_batch)) {
            for (const Task& task : *tasks) add(task);
          }
        });
  } else {
    for (size_t p = 0; p < structure_.positions.size(); ++p) {
      ForEachTaskOf(static_cast<int>(p), add);
    }
  }
  ForEachSyncTask([&](const Task& task, SyncPhase, int) { add(task); },
                  [&](const std::vector<int>& ranks, Picoseconds duration, double) {
                    contended_collectives_.push_back({ranks[0], -1, ranks, duration});
                    add(contended_collectives_.back());
                  });
  return costs_.cpu_contention().Run(contended_tasks_, nullptr);
}

Picoseconds Simulator::FullTime() {
  if (costs_.cpu_contention().needed()) return ContendedTime();
  std::fill(scratch_.begin(), scratch_.end(), 0);
  if (structure_.micro_batches > 1) {
    RunMicroBatches(scratch_.data());
  } else {
    RunPositions(0, static_cast<int>(structure_.positions.size()), scratch_.data());
  }
  return RunGradientSync(scratch_.data());
}

Picoseconds Simulator::DeltaTime() {
  if (dirty_.empty() && !sync_dirty_) return time_;
  ExtendClocks(first_dirty_);
  const Picoseconds* from = &clocks_[first_dirty_ * devices_];
  std::copy(from, from + devices_, scratch_.begin());
  const int end = sync_dirty_ ? num_segments() : last_dirty_ + 1;
  for (int s = first_dirty_; s < end; ++s) {
    if (segment_stamp_[s] == stamp_) {
      RunPositions(SegmentBegin(s), SegmentEnd(s), scratch_.data());
    } else {
      Advance(s, scratch_.data());
    }
  }
  if (sync_dirty_) return RunGradientSync(scratch_.data());
  ExtendRemaining(end);
  Picoseconds time = 0;
  for (int d = 0; d < devices_; ++d) {
    time = std::max(time, scratch_[d] + remaining_[end * devices_ + d]);
  }
  return time;
}

}  // namespace espalier
