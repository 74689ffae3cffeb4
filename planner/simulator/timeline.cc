// Simulator::MakeTimeline: the simulated step, written down.
#include <algorithm>
#include <map>

#include "planner/machine/topology.h"
#include "planner/simulator/positions.h"
#include "planner/simulator/tail.h"

namespace espalier {
namespace {

// Bytes that each directed link carries.
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

  // `bytes` in all, around the ring of the ranks.
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
  Timeline timeline;
  Traffic traffic(costs_.topology(), devices_);
  std::vector<Picoseconds> clocks(devices_, 0);
  const auto add = [&](int device, Picoseconds begin, Picoseconds end, TimelineTask::Kind kind,
                       bool communicates, double bytes, const std::string& node) {
    if (end == begin) return;
    timeline.tasks.push_back(
        {kind, device, ToSeconds(begin), ToSeconds(end), communicates, bytes, node});
  };
  const auto meet = [&](const std::vector<int>& ranks, Picoseconds duration,
                        TimelineTask::Kind kind, double bytes, const std::string& node) {
    Picoseconds start = 0;
    for (int device : ranks) start = std::max(start, clocks[device]);
    for (int device : ranks) {
      clocks[device] = start + duration;
      add(device, start, clocks[device], kind, true, bytes, node);
    }
  };
  const auto run = [&](const Task& task, TimelineTask::Kind kind, const std::string& node) {
    if (!task.group.empty()) {
      meet(task.group, task.duration, kind, task.bytes_moved, node);
      traffic.AddRing(task.group, task.bytes_moved);
    } else if (task.peer >= 0) {
      meet({task.device, task.peer}, task.duration, kind, task.bytes_moved, node);
      traffic.Add(task.device, task.peer, task.bytes_moved);
    } else {
      const Picoseconds begin = clocks[task.device];
      clocks[task.device] += task.duration;
      add(task.device, begin, clocks[task.device], kind, false, 0, node);
    }
  };

  const Graph& graph = structure_.graph();
  struct Moment {
    int number = 0;  // of FindMemoryChanges
    int micro_batch = 0;
    std::vector<Picoseconds> clocks;
  };
  std::vector<Moment> moments;
  const auto name_of = [&](int p) {
    const Position& position = structure_.positions[p];
    return graph
        .node(position.config_node != kNoNode ? position.config_node : position.outputs[0].node)
        .name;
  };
  const auto transfer = [&](const TaskList& tasks, int p) {
    for (const Task& task : tasks) run(task, TimelineTask::kReshard, name_of(p));
  };
  const auto execute = [&](int p, int micro_batch) {
    moments.push_back({2 * p + 1, micro_batch, clocks});
    const bool forward = structure_.positions[p].role == Position::kForward;
    for (const Task& task : *position_tasks_[p]) {
      run(task, forward ? TimelineTask::kForward : TimelineTask::kBackward, name_of(p));
    }
    for (const TaskList* tasks : AccumulationsOf(p, micro_batch)) {
      for (const Task& task : *tasks) run(task, TimelineTask::kBackward, name_of(p));
    }
  };
  if (structure_.micro_batches == 1) {
    ForEachPosition([&](int p, int micro_batch) {
      moments.push_back({2 * p, micro_batch, clocks});
      const Position& position = structure_.positions[p];
      for (int s = position.first_slot; s < position.last_slot; ++s) {
        if (slot_tasks_[s] != nullptr) transfer(slot_tasks_[s]->tasks, p);
      }
      execute(p, micro_batch);
    });
  } else {
    ForEachOfSchedule(transfer, [&](int p, int micro_batch) {
      moments.push_back({2 * p, micro_batch, clocks});
      execute(p, micro_batch);
    });
  }
  const int end = 2 * static_cast<int>(structure_.positions.size());
  for (int m = 0; m < structure_.micro_batches; ++m) moments.push_back({end, m, clocks});
  PlayTail(
      [&](const Task& task, TailPart part, int gradient) {
        run(task, part == TailPart::kSync ? TimelineTask::kGradientSync : TimelineTask::kUpdate,
            graph.value(structure_.gradients[gradient].parameter).name);
      },
      [&](const std::vector<int>& ranks, Picoseconds duration, double bytes) {
        const double moved = 2 * static_cast<double>(ranks.size() - 1) * bytes;
        meet(ranks, duration, TimelineTask::kGradientSync, moved, "gradients");
        traffic.AddRing(ranks, moved);
      });
  timeline.seconds = ToSeconds(*std::max_element(clocks.begin(), clocks.end()));
  std::stable_sort(timeline.tasks.begin(), timeline.tasks.end(),
                   [](const TimelineTask& a, const TimelineTask& b) { return a.begin < b.begin; });
  timeline.links = traffic.Links(costs_.LinkBandwidth());

  const std::vector<int64_t> kept = FindMemoryChanges();
  for (int m = end + 1; m < static_cast<int>(change_[0].size()); ++m) {
    moments.push_back({m, 0, clocks});
  }
  for (int d = 0; d < devices_; ++d) {
    MemoryCurve curve;
    if (d < static_cast<int>(memory_limits.size())) curve.limit = memory_limits[d];
    int64_t now = kept[d];
    for (const Moment& moment : moments) {
      now += ChangeAt(d, moment.number, moment.micro_batch);
      const double at = ToSeconds(moment.clocks[d]);
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
