#include "planner/report/gantt.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace espalier {
namespace {

using Tasks = std::vector<const TimelineTask*>;

bool IsSound(const TimelineTask& task) {
  return std::isfinite(task.begin) && std::isfinite(task.end) && task.begin >= 0 &&
         task.end >= task.begin && task.device >= 0 && task.kind >= 0 && task.kind < kTaskKinds;
}

GanttBar BarOf(const TimelineTask& task) {
  GanttBar bar;
  bar.kind = task.kind;
  bar.begin = task.begin;
  bar.end = task.end;
  bar.bytes = std::isfinite(task.bytes) ? task.bytes : 0;
  bar.tasks = 1;
  bar.seconds[task.kind] = task.end - task.begin;
  bar.first = bar.last = &task;
  return bar;
}

void Merge(const GanttBar& next, GanttBar* bar) {
  bar->end = std::max(bar->end, next.end);
  bar->bytes += next.bytes;
  bar->tasks += next.tasks;
  for (int k = 0; k < kTaskKinds; ++k) bar->seconds[k] += next.seconds[k];
  bar->last = next.last;
  const auto most = std::max_element(bar->seconds.begin(), bar->seconds.end());
  if (*most > bar->seconds[bar->kind]) {
    bar->kind = static_cast<TimelineTask::Kind>(most - bar->seconds.begin());
  }
}

// Limits a merged bar to this many tiny tasks, so that its tooltip still locates tasks.
constexpr double kMaxMerged = 8;

// Merges tiny neighbors of the same kind that are close to each other.
std::vector<GanttBar> MergeTiny(const Tasks& tasks, double tiny) {
  std::vector<GanttBar> bars;
  bool last_is_tiny = false;
  for (const TimelineTask* task : tasks) {
    const GanttBar bar = BarOf(*task);
    const bool is_tiny = bar.end - bar.begin < tiny;
    if (is_tiny && last_is_tiny && bars.back().kind == bar.kind &&
        bar.begin - bars.back().end < tiny / 2 && bar.end - bars.back().begin < kMaxMerged * tiny) {
      Merge(bar, &bars.back());
    } else {
      bars.push_back(bar);
    }
    last_is_tiny = is_tiny;
  }
  return bars;
}

// Merges bars shorter than a cell that start in the same cell, regardless of kind. This leaves at
// most one short bar per cell and, if bars do not overlap, one long bar.
std::vector<GanttBar> MergeByCells(const std::vector<GanttBar>& bars, double cell, size_t limit,
                                   int64_t* left_out) {
  std::vector<GanttBar> out;
  double last_cell = -1;
  for (const GanttBar& bar : bars) {
    const double start = std::floor(bar.begin / cell);
    const bool is_short = bar.end - bar.begin < cell;
    if (is_short && start == last_cell) {
      Merge(bar, &out.back());
    } else if (out.size() < limit) {
      out.push_back(bar);
      last_cell = is_short ? start : -1;
    } else {
      *left_out += bar.tasks;
    }
  }
  return out;
}

std::vector<GanttBar> BarsOf(const Tasks& tasks, double seconds, double tiny, int limit,
                             int64_t* left_out) {
  std::vector<GanttBar> bars = MergeTiny(tasks, seconds * tiny);
  if (bars.size() <= static_cast<size_t>(limit)) return bars;
  return MergeByCells(bars, seconds / (limit / 2), limit, left_out);
}

double UnionSeconds(const Tasks& tasks) {
  double covered = 0, end = 0;
  for (const TimelineTask* task : tasks) {
    covered += std::max(0.0, task->end - std::max(end, task->begin));
    end = std::max(end, task->end);
  }
  return covered;
}

// Adds to each interval the part of it that lies in [begin, end).
void AddShare(double begin, double end, double part, std::vector<double>* shares) {
  const int last = static_cast<int>(shares->size()) - 1;
  const int from = std::clamp(static_cast<int>(begin / part), 0, last);
  const int to = std::clamp(static_cast<int>(end / part), 0, last);
  for (int i = from; i <= to; ++i) {
    const double overlap = std::min(end, (i + 1) * part) - std::max(begin, i * part);
    if (overlap > 0) (*shares)[i] += overlap / part;
  }
}

void Summarize(const std::map<int, Tasks>& by_device, const GanttOptions& options, Gantt* out) {
  out->computing.assign(options.parts, 0);
  out->communicating.assign(options.parts, 0);
  const double part = out->seconds / options.parts;
  for (const auto& [device, tasks] : by_device) {
    for (const TimelineTask* task : tasks) {
      AddShare(task->begin, task->end, part,
               task->communicates ? &out->communicating : &out->computing);
    }
  }
  for (std::vector<double>* shares : {&out->computing, &out->communicating}) {
    for (double& share : *shares) share /= static_cast<double>(by_device.size());
  }
}

}  // namespace

double GanttBar::busy() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

Gantt MakeGantt(const Timeline& timeline, int devices, const GanttOptions& options) {
  Gantt out;
  if (std::isfinite(timeline.seconds)) out.seconds = std::max(0.0, timeline.seconds);
  std::map<int, Tasks> by_device;
  for (int d = 0; d < devices; ++d) by_device[d];
  for (const TimelineTask& task : timeline.tasks) {
    if (!IsSound(task)) {
      ++out.left_out;
      continue;
    }
    by_device[task.device].push_back(&task);
    out.seconds = std::max(out.seconds, task.end);
  }
  if (!(out.seconds > 0) || by_device.empty()) return out;

  std::vector<std::pair<double, int>> busiest;  // (minus busy seconds, device)
  for (auto& [device, tasks] : by_device) {
    std::stable_sort(tasks.begin(), tasks.end(), [](const TimelineTask* a, const TimelineTask* b) {
      return a->begin < b->begin;
    });
    busiest.emplace_back(-UnionSeconds(tasks), device);
  }
  std::sort(busiest.begin(), busiest.end());
  const size_t lanes = std::min<size_t>(busiest.size(), options.max_lanes);
  if (lanes < busiest.size()) {
    out.other_devices = static_cast<int>(busiest.size() - lanes);
    out.most_busy = -busiest[lanes].first;
    out.least_busy = -busiest.back().first;
    Summarize(by_device, options, &out);
  }
  // Half a lane's share for each row, and enough to show small plans task by task.
  const int limit = std::max(4, options.max_bars / static_cast<int>(2 * lanes));
  for (size_t i = 0; i < lanes; ++i) {
    const auto [minus_busy, device] = busiest[i];
    GanttLane lane{device, -minus_busy};
    Tasks compute, communication;
    for (const TimelineTask* task : by_device[device]) {
      (task->communicates ? communication : compute).push_back(task);
    }
    lane.compute = BarsOf(compute, out.seconds, options.tiny, limit, &out.left_out);
    lane.communication = BarsOf(communication, out.seconds, options.tiny, limit, &out.left_out);
    out.lanes.push_back(std::move(lane));
  }
  std::sort(out.lanes.begin(), out.lanes.end(),
            [](const GanttLane& a, const GanttLane& b) { return a.device < b.device; });
  return out;
}

}  // namespace espalier
