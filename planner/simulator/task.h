// Tasks of the simulator. Time is counted in integer picoseconds, so that shifting a part of a
// timeline is exact and delta simulation equals full simulation to the last digit.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace espalier {

using Picoseconds = int64_t;

inline Picoseconds ToPicoseconds(double seconds) {
  return static_cast<Picoseconds>(std::llround(seconds * 1e12));
}
inline double ToSeconds(Picoseconds time) { return static_cast<double>(time) * 1e-12; }

// Work of one device (`peer` and `group` unset), a transfer that holds two devices, or a collective
// that holds a group of them. Devices run their tasks in the order of the program and wait for each
// other, as the executor does.
struct Task {
  int device = 0;
  int peer = -1;
  std::vector<int> group;
  Picoseconds duration = 0;
  double bytes_moved = 0;  // between devices
};

using TaskList = std::vector<Task>;

// Advances the devices' clocks by `task`.
inline void RunTask(const Task& task, Picoseconds* clocks) {
  if (!task.group.empty()) {
    Picoseconds start = clocks[task.group[0]];
    for (int device : task.group) start = start > clocks[device] ? start : clocks[device];
    for (int device : task.group) clocks[device] = start + task.duration;
  } else if (task.peer >= 0) {
    Picoseconds start = clocks[task.device];
    if (clocks[task.peer] > start) start = clocks[task.peer];
    clocks[task.device] = clocks[task.peer] = start + task.duration;
  } else {
    clocks[task.device] += task.duration;
  }
}

}  // namespace espalier
