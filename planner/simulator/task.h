// Tasks of the simulator. Time is counted in integer picoseconds, so that shifting a part of a
// timeline is exact and delta simulation equals full simulation to the last digit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "planner/machine/rates.h"

namespace espalier {

using Picoseconds = int64_t;

// What no task exceeds, and the tasks of a step together (Simulator::Reset): sums stay whole.
inline constexpr Picoseconds kMaxTaskPicoseconds = static_cast<Picoseconds>(kMaxTaskSeconds * 1e12);
inline constexpr Picoseconds kMaxStepPicoseconds = 4'000'000'000'000'000'000;

// At most kMaxTaskPicoseconds, which also stands for what is no number; at least 0.
inline Picoseconds ToPicoseconds(double seconds) {
  if (!(seconds < kMaxTaskSeconds)) return kMaxTaskPicoseconds;
  return seconds > 0 ? static_cast<Picoseconds>(std::llround(seconds * 1e12)) : 0;
}
inline double ToSeconds(Picoseconds time) { return static_cast<double>(time) * 1e-12; }

// Work of one device (`peer` and `group` unset), a message from `device` to `peer`, or a collective
// that holds a group of them. Devices run their tasks in the order of the program and wait for each
// other, as the executor does.
struct Task {
  int device = 0;
  int peer = -1;
  std::vector<int> group;
  Picoseconds duration = 0;
  double bytes_moved = 0;  // between devices
  // Of a message: its sender hands it over in this time and goes on; the peer has it `duration`
  // after that, or after it began to wait for it. Negative: it holds both for `duration`.
  Picoseconds send_duration = -1;

  bool is_buffered() const { return peer >= 0 && send_duration >= 0; }
};

using TaskList = std::vector<Task>;

// When a task runs; of a buffered message, when its receiver takes it, and its sender sends it.
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
