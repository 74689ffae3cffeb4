// Simulator::MakeTimeline: the simulated step as a timeline.
#include <algorithm>
#include <deque>

#include "planner/machine/topology.h"
#include "planner/simulator/gradient_sync.h"
#include "planner/simulator/schedule.h"

namespace espalier {
namespace {

// Bytes on each directed link.
class Traffic {
 public:
  Traffic(const Topology* topology, int devices) : topology_(topology), sent_(devices, 0) {
    if (topology != nullptr) bytes_.assign(topology->num_edges(), 0);
  }

  void Add(int from, int to, double bytes) {
    sent_[from] += bytes;
    if (topology_ == nullptr) return;
    topology_->VisitPath(from, to, [&](int edge) { bytes_[edge] += bytes; });
  }

  // `bytes` in total, around the ring of the ranks.
  void AddRing(std::vector<int> ranks, double bytes) {
    if (topology_ != nullptr) ranks = TreeOrder(*topology_, ranks);
    const double each = bytes / static_cast<double>(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) Add(ranks[i], ranks[(i + 1) % ranks.size()], each);
  }

  std::vector<LinkTraffic> Links(double link_bandwidth) const {
    std::vector<LinkTraffic> links;
    if (topology_ == nullptr) {
      for (size_t d = 0; d < sent_.size(); ++d) {
        if (sent_[d] > 0) {
          links.push_back({"device " + std::to_string(d) + " sends", sent_[d], link_bandwidth});
        }
      }
      return links;
    }
    for (int e = 0; e < topology_->num_edges(); ++e) {
      if (bytes_[e] > 0) {
        links.push_back({topology_->EdgeName(e), bytes_[e], topology_->EdgeBandwidth(e)});
      }
    }
    return links;
  }

 private:
  const Topology* topology_;
  std::vector<double> sent_;   // by device
  std::vector<double> bytes_;  // by edge
};

}  // namespace

Timeline Simulator::MakeTimeline(const std::vector<int64_t>& memory_limits) {
  const Graph& graph = structure_.graph();
  // In program order.
  struct Entry {
    TimelineTask::Kind kind;
    std::string node;
  };
  std::vector<const Task*> tasks;
  std::vector<Entry> entries;
  std::deque<Task> collectives;  // of gradient synchronization
  const auto add = [&](const Task& task, TimelineTask::Kind kind, const std::string& node) {
    tasks.push_back(&task);
    entries.push_back({kind, node});
  };
  struct ProgramPoint {
    int number = 0;  // program point, as in FindMemoryChanges
    int micro_batch = 0;
    size_t tasks_before = 0;
    std::vector<Picoseconds> clocks = {};
  };
  std::vector<ProgramPoint> points;
  const auto name_of = [&](int p) {
    const Position& position = structure_.positions[p];
    return graph
        .node(position.config_node != kNoNode ? position.config_node : position.outputs[0].node)
        .name;
  };
  const auto transfer = [&](const TaskList& list, int p) {
    for (const Task& task : list) add(task, TimelineTask::kReshard, name_of(p));
  };
  const auto execute = [&](int p, int micro_batch) {
    points.push_back({2 * p + 1, micro_batch, tasks.size()});
    const bool forward = structure_.positions[p].role == Position::kForward;
    for (const Task& task : *position_tasks_[p]) {
      add(task, forward ? TimelineTask::kForward : TimelineTask::kBackward, name_of(p));
    }
    for (const TaskList* list : AccumulationsOf(p, micro_batch)) {
      for (const Task& task : *list) add(task, TimelineTask::kBackward, name_of(p));
    }
  };
  if (structure_.micro_batches == 1) {
    ForEachPosition([&](int p, int micro_batch) {
      points.push_back({2 * p, micro_batch, tasks.size()});
      const Position& position = structure_.positions[p];
      for (int s = position.first_slot; s < position.last_slot; ++s) {
        if (slot_tasks_[s] != nullptr) transfer(slot_tasks_[s]->tasks, p);
      }
      execute(p, micro_batch);
    });
  } else {
    ForEachScheduled(transfer, [&](int p, int micro_batch) {
      points.push_back({2 * p, micro_batch, tasks.size()});
      execute(p, micro_batch);
    });
  }
  const int end = 2 * static_cast<int>(structure_.positions.size());
  for (int m = 0; m < structure_.micro_batches; ++m) points.push_back({end, m, tasks.size()});
  ForEachSyncTask(
      [&](const Task& task, SyncPhase part, int gradient) {
        add(task, part == SyncPhase::kSync ? TimelineTask::kGradientSync : TimelineTask::kUpdate,
            graph.value(structure_.gradients[gradient].parameter).name);
      },
      [&](const std::vector<int>& ranks, Picoseconds duration, double bytes) {
        const double moved = 2 * static_cast<double>(ranks.size() - 1) * bytes;
        collectives.push_back({ranks[0], -1, ranks, duration, moved});
        add(collectives.back(), TimelineTask::kGradientSync, "gradients");
      });

  std::vector<TaskSpan> spans;
  if (costs_.cpu_contention().needed()) {
    costs_.cpu_contention().Run(tasks, &spans);
  } else {
    std::vector<Picoseconds> clocks(devices_, 0);
    for (const Task* task : tasks) spans.push_back(RunTask(*task, clocks.data()));
  }

  Timeline timeline;
  Traffic traffic(costs_.topology(), devices_);
  std::vector<Picoseconds> clocks(devices_, 0);
  const auto show = [&](int device, Picoseconds begin, Picoseconds until, size_t t) {
    clocks[device] = until;
    if (until == begin) return;
    const bool communicates = tasks[t]->peer >= 0 || !tasks[t]->group.empty();
    timeline.tasks.push_back({entries[t].kind, device, ToSeconds(begin), ToSeconds(until),
                              communicates, tasks[t]->bytes_moved, entries[t].node});
  };
  size_t next = 0;  // index into points
  for (size_t t = 0; t <= tasks.size(); ++t) {
    for (; next < points.size() && points[next].tasks_before == t; ++next) {
      points[next].clocks = clocks;
    }
    if (t == tasks.size()) break;
    const Task& task = *tasks[t];
    const TaskSpan& span = spans[t];
    if (!task.group.empty()) {
      for (int device : task.group) show(device, span.begin, span.end, t);
      traffic.AddRing(task.group, task.bytes_moved);
    } else if (task.peer >= 0) {
      const bool buffered = task.is_buffered();
      show(task.device, buffered ? span.sent_begin : span.begin,
           buffered ? span.sent_end : span.end, t);
      show(task.peer, span.begin, span.end, t);
      traffic.Add(task.device, task.peer, task.bytes_moved);
    } else {
      show(task.device, span.begin, span.end, t);
    }
  }
  timeline.seconds = ToSeconds(*std::max_element(clocks.begin(), clocks.end()));
  std::stable_sort(timeline.tasks.begin(), timeline.tasks.end(),
                   [](const TimelineTask& a, const TimelineTask& b) { return a.begin < b.begin; });
  timeline.links = traffic.Links(costs_.LinkBandwidth());

  const std::vector<int64_t> kept = FindMemoryChanges();
  for (int m = end + 1; m < static_cast<int>(change_[0].size()); ++m) {
    points.push_back({m, 0, tasks.size(), clocks});
  }
  for (int d = 0; d < devices_; ++d) {
    MemoryCurve curve;
    if (d < static_cast<int>(memory_limits.size())) curve.limit = memory_limits[d];
    int64_t now = kept[d];
    for (const ProgramPoint& point : points) {
      now += ChangeAt(d, point.number, point.micro_batch);
      const double at = ToSeconds(point.clocks[d]);
      if (!curve.bytes.empty() && curve.bytes.back() == now) continue;
      if (!curve.seconds.empty() && curve.seconds.back() == at) {
        curve.bytes.back() = std::max(curve.bytes.back(), now);
        continue;
      }
      curve.seconds.push_back(at);
      curve.bytes.push_back(now);
    }
    timeline.memory.push_back(std::move(curve));
  }
  return timeline;
}

}  // namespace espalier
