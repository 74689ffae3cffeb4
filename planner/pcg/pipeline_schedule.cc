#include "planner/pcg/pipeline_schedule.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace espalier {
namespace {

int Root(std::vector<int>& parent, int d) {
  while (parent[d] != d) d = parent[d] = parent[parent[d]];
  return d;
}

// A segment: consecutive positions of one stage and direction.
struct Segment {
  int first = 0;
  int last = 0;
  int stage = 0;
  bool backward = false;
};

std::vector<Segment> SegmentsOf(const PcgStructure& structure, const std::vector<int>& stages) {
  std::vector<Segment> segments;
  for (int p = 0; p < static_cast<int>(structure.positions.size()); ++p) {
    const bool backward = structure.positions[p].role != Position::kForward;
    if (segments.empty() || segments.back().stage != stages[p] ||
        segments.back().backward != backward) {
      segments.push_back({p, p, stages[p], backward});
    }
    segments.back().last = p + 1;
  }
  return segments;
}

}  // namespace

std::vector<int> PipelineStagesOf(const PcgStructure& structure, const Placement& placement,
                                  LayoutTable& layouts, int num_devices) {
  std::vector<int> parent(num_devices);
  std::iota(parent.begin(), parent.end(), 0);
  for (NodeId n : structure.LiveNodes()) {
    const std::vector<int>& devices = placement[n]->config.devices;
    for (int d : devices) parent[Root(parent, d)] = Root(parent, devices[0]);
  }
  std::vector<int> stages;
  std::map<int, int> number;  // by root
  for (const Position& position : structure.positions) {
    int device = 0;
    if (position.config_node != kNoNode) {
      device = placement[position.config_node]->config.devices[0];
    } else {
      const int layout = Resolve(structure, placement, layouts, position.outputs[0]);
      device = layouts.Get(layout).shards[0].device;
    }
    const int root = Root(parent, device);
    stages.push_back(number.try_emplace(root, static_cast<int>(number.size())).first->second);
  }
  return stages;
}

std::vector<ScheduleItem> MakePipelineSchedule(const PcgStructure& structure,
                                               const std::vector<int>& stages) {
  const int count = structure.micro_batches;
  if (count == 1) return {{0, static_cast<int>(structure.positions.size()), 0}};
  const std::vector<Segment> segments = SegmentsOf(structure, stages);
  const int num_segments = static_cast<int>(segments.size());
  const int num_stages = stages.empty() ? 0 : *std::max_element(stages.begin(), stages.end()) + 1;
  std::vector<int> enters(num_stages, num_segments), leaves(num_stages, -1);
  for (int s = 0; s < num_segments; ++s) {
    enters[segments[s].stage] = std::min(enters[segments[s].stage], s);
    leaves[segments[s].stage] = s;
  }

  // Micro-batches go through a segment in order, so only the next one of each segment is a
  // candidate.
  std::vector<int> done(num_segments, 0);  // micro-batches
  std::vector<int64_t> ready(count, 0);    // by micro-batch: the end of its last segment
  std::vector<int64_t> free(num_stages, 0);
  std::vector<int> under_way(num_stages, 0);
  std::vector<ScheduleItem> schedule, wave;  // wave: items that begin at the same time
  int64_t wave_start = -1;
  const auto end_wave = [&] {
    for (ScheduleItem item : wave) {
      item.transfers = true;
      schedule.push_back(item);
    }
    schedule.insert(schedule.end(), wave.begin(), wave.end());
    wave.clear();
  };
  while (true) {
    int chosen = -1;  // a segment; among those that can begin first, the last
    int64_t start = 0;
    for (int s = num_segments - 1; s >= 0; --s) {
      if (done[s] == (s == 0 ? count : done[s - 1])) continue;
      const int stage = segments[s].stage;
      // Without a backward pass there is no limit on micro-batches in flight.
      if (!structure.forward_only && s == enters[stage] && under_way[stage] >= num_stages - stage) {
        continue;
      }
      const int64_t at = std::max(ready[done[s]], free[stage]);
      if (chosen >= 0 && at >= start) continue;
      chosen = s;
      start = at;
    }
    if (chosen < 0) break;
    const Segment& segment = segments[chosen];
    const int m = done[chosen]++;
    if (chosen == enters[segment.stage]) ++under_way[segment.stage];
    if (chosen == leaves[segment.stage]) --under_way[segment.stage];
    ready[m] = free[segment.stage] = start + (segment.backward ? 2 : 1);
    if (start != wave_start) end_wave();
    wave_start = start;
    wave.push_back({segment.first, segment.last, m});
  }
  end_wave();
  return schedule;
}

std::vector<bool> CrossStageSlots(const PcgStructure& structure, const std::vector<int>& stages) {
  std::vector<int> stage_of_value(structure.base.size(), -1);
  for (size_t p = 0; p < structure.positions.size(); ++p) {
    if (structure.positions[p].node == kNoNode) continue;
    for (ValueId v : structure.graph().node(structure.positions[p].node).outputs) {
      if (v != kNoValue) stage_of_value[v] = stages[p];
    }
  }
  std::vector<bool> crossing;
  for (const Slot& slot : structure.slots) {
    const bool computed = slot.value != kNoValue && stage_of_value[slot.value] >= 0 &&
                          slot.position < static_cast<int>(stages.size());
    crossing.push_back(computed && stage_of_value[slot.value] != stages[slot.position]);
  }
  return crossing;
}

}  // namespace espalier
