// The order in which the devices meet the operators of all micro-batches.
#pragma once

#include <vector>

#include "planner/pcg/placement.h"
#include "planner/pcg/structure.h"

namespace espalier {

// Positions [first, last) of one micro-batch; or, before them, what they read of other stages.
struct ScheduleItem {
  int first = 0;
  int last = 0;
  int micro_batch = 0;
  bool transfers = false;

  bool operator==(const ScheduleItem&) const = default;
};

// By position: the group of devices that it runs on. Devices that some operator runs on together
// belong to one group, a stage; groups are numbered in the order in which the graph meets them.
std::vector<int> PipelineStagesOf(const PcgStructure& structure, const Placement& placement,
                          LayoutTable& layouts, int num_devices);

// One order for all devices, so that they cannot wait for each other in a circle. With several
// stages it is 1F1B (PipeDream, Narayanan et al., SOSP 2019, with a flush at the end of the step as
// in PipeDream-2BW and Megatron-LM): of S stages, stage s (from 0) has at most S - s micro-batches
// under way, and prefers the backward pass. Found by simulating the stages with forward parts of
// length 1 and backward parts of length 2. What a device sends it sends when the receiver is due,
// so nothing waits that this order does not make wait.
std::vector<ScheduleItem> MakePipelineSchedule(const PcgStructure& structure,
                                       const std::vector<int>& stages);

// By slot: whether the value was computed by another stage than that which reads it.
std::vector<bool> CrossStageSlots(const PcgStructure& structure, const std::vector<int>& stages);

}  // namespace espalier
