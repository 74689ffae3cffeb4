// A timeline made small enough to be drawn: one lane per device, runs of tiny tasks as one bar.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/report/timeline.h"

namespace espalier {

constexpr int kTaskKinds = TimelineTask::kUpdate + 1;

// One task, or several that follow each other and are too short to be seen one by one.
struct GanttBar {
  TimelineTask::Kind kind = TimelineTask::kForward;  // of several: that takes most of the time
  double begin = 0, end = 0;                         // seconds; gaps between the tasks included
  double bytes = 0;
  int64_t tasks = 0;
  std::array<double, kTaskKinds> seconds{};  // by kind, without gaps
  const TimelineTask* first = nullptr;       // of the timeline, which must outlive the bar
  const TimelineTask* last = nullptr;

  double busy() const;
};

struct GanttLane {
  int device = 0;
  double busy = 0;  // seconds in which it computes or communicates
  std::vector<GanttBar> compute, communication;
};

struct Gantt {
  double seconds = 0;            // of the axis: the step, or the end of the last task
  std::vector<GanttLane> lanes;  // by device
  // Devices without a lane, and how long the least and the most busy of them is busy.
  int other_devices = 0;
  double least_busy = 0, most_busy = 0;
  // Over all devices, in equal parts of the time: the share of devices that compute and that
  // communicate. Empty if each device has a lane.
  std::vector<double> computing, communicating;
  int64_t left_out = 0;  // tasks that have no bar in the lanes shown
};

struct GanttOptions {
  int max_lanes = 16;       // the busiest devices
  int max_bars = 3200;      // in all lanes
  double tiny = 1.0 / 800;  // of the step: shorter tasks are merged
  int parts = 200;          // of the summary of all devices
};

// `devices` (at least) have lanes. Tasks whose times are no numbers, negative or backwards are left
// out. Linear in the tasks, up to logarithms.
Gantt MakeGantt(const Timeline& timeline, int devices, const GanttOptions& options = {});

}  // namespace espalier
