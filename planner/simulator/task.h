// The simulator's tasks. Time is in integer picoseconds, so that shifting part of a timeline is
// exact and delta simulation equals full simulation to the last digit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "planner/machine/rates.h"

namespace espalier {

using Picoseconds = int64_t;

// Limits of a task and of the sum of all tasks of a step (Simulator::Reset), so that sums do not
// overflow.
inline constexpr Picoseconds kMaxTaskPicoseconds = static_cast<Picoseconds>(kMaxTaskSeconds * 1e12);
inline constexpr Picoseconds kMaxStepPicoseconds = 4'000'000'000'000'000'000;

// Clamps to [0, kMaxTaskPicoseconds]; NaN gives the maximum.
inline Picoseconds ToPicoseconds(double seconds) {
  if (!(seconds < kMaxTaskSeconds)) return kMaxTaskPicoseconds;
  return seconds > 0 ? static_cast<Picoseconds>(std::llround(seconds * 1e12)) : 0;
}
inline double ToSeconds(Picoseconds time) { return static_cast<double>(time) * 1e-12; }

// Work of one device (`peer` and `group` unset), a message from `device` to `peer`, or a collective
// that occupies a group of devices. Devices run their tasks in program order and wait for each
// other, as the executor does.
struct Task {
  int device = 0;
  int peer = -1;
  std::vector<int> group;
  Picoseconds duration = 0;
  double bytes_moved = 0;  // between devices
  // Of a buffered message: the time after which the sender goes on. The peer has the message
  // `duration` after that, or after it began to wait. Negative: unbuffered, both are busy for
  // `duration`.
  Picoseconds send_duration = -1;

  bool is_buffered() const { return peer >= 0 && send_duration >= 0; }
};

using TaskList = std::vector<Task>;

// When a task runs. Of a buffered message: when the receiver takes it, and when the sender sends
// it.
struct TaskSpan {
  Picoseconds begin = 0, end = 0;
  Picoseconds sent_begin = 0, sent_end = 0;
};

// Advances the devices' clocks by `task`.
inline TaskSpan RunTask(const Task& task, Picoseconds* clocks) {
  TaskSpan span;
  if (!task.group.empty()) {
    span.begin = clocks[task.group[0]];
    for (int device : task.group) span.begin = std::max(span.begin, clocks[device]);
    span.end = span.begin + task.duration;
    for (int device : task.group) clocks[device] = span.end;
  } else if (task.is_buffered()) {
    span.sent_begin = clocks[task.device];
    span.sent_end = clocks[task.device] += task.send_duration;
    span.begin = std::max(clocks[task.peer], span.sent_end);
    span.end = clocks[task.peer] = span.begin + task.duration;
  } else if (task.peer >= 0) {
    span.begin = std::max(clocks[task.device], clocks[task.peer]);
    span.end = clocks[task.device] = clocks[task.peer] = span.begin + task.duration;
  } else {
    span.begin = clocks[task.device];
    span.end = clocks[task.device] += task.duration;
  }
  return span;
}

}  // namespace espalier
