// Reduces a timeline to a drawable Gantt chart: one lane per device, runs of tiny tasks merged into
// one bar.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/report/timeline.h"

namespace espalier {

constexpr int kTaskKinds = TimelineTask::kUpdate + 1;

// One task, or several consecutive ones that are too short to draw.
struct GanttBar {
  TimelineTask::Kind kind = TimelineTask::kForward;  // of several: the kind with the most time
  double begin = 0, end = 0;                         // seconds, including gaps between the tasks
  double bytes = 0;
  int64_t tasks = 0;
  std::array<double, kTaskKinds> seconds{};  // by kind, without gaps
  const TimelineTask* first = nullptr;       // in the timeline, which must outlive the bar
  const TimelineTask* last = nullptr;

  double busy() const;
};

struct GanttLane {
  int device = 0;
  double busy = 0;  // seconds of computing or communicating
  std::vector<GanttBar> compute, communication;
};

struct Gantt {
  double seconds = 0;            // of the axis: the step, or the end of the last task
  std::vector<GanttLane> lanes;  // by device
  // Number of devices without a lane, and their least and greatest busy time.
  int other_devices = 0;
  double least_busy = 0, most_busy = 0;
  // Over all devices, in equal intervals: the share that compute and that communicate. Empty if
  // every device has a lane.
  std::vector<double> computing, communicating;
  int64_t left_out = 0;  // tasks without a bar in the shown lanes
};

struct GanttOptions {
  int max_lanes = 16;       // the busiest devices
  int max_bars = 3200;      // in all lanes
  double tiny = 1.0 / 800;  // of the step: shorter tasks are merged
  int parts = 200;          // of the summary of all devices
};

// Makes lanes for at least `devices` devices. Ignores tasks whose times are NaN, negative or
// reversed. Takes time linear in the tasks, up to logarithms.
Gantt MakeGantt(const Timeline& timeline, int devices, const GanttOptions& options = {});

}  // namespace espalier
