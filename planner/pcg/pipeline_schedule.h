// The pipeline schedule: the order in which devices run the operators of all micro-batches.
#pragma once

#include <vector>

#include "planner/pcg/placement.h"
#include "planner/pcg/structure.h"

namespace espalier {

// Positions [first, last) of one micro-batch; or, if `transfers`, the transfers from other stages
// that these positions need.
struct ScheduleItem {
  int first = 0;
  int last = 0;
  int micro_batch = 0;
  bool transfers = false;

  bool operator==(const ScheduleItem&) const = default;
};

// Returns, by position, its pipeline stage: a group of devices. Devices that run some operator
// together belong to one stage. Stages are numbered in the order of the graph.
std::vector<int> PipelineStagesOf(const PcgStructure& structure, const Placement& placement,
                                  LayoutTable& layouts, int num_devices);

// Returns one order for all devices, so that they cannot deadlock. With several stages it is 1F1B
// (PipeDream, Narayanan et al., SOSP 2019, with a flush at the end of the step as in PipeDream-2BW
// and Megatron-LM): of S stages, stage s (from 0) has at most S - s micro-batches in flight and
// prefers the backward pass. Found by simulating the stages with forward parts of length 1 and
// backward parts of length 2. A device sends when the receiver is due, so sends never add waiting.
std::vector<ScheduleItem> MakePipelineSchedule(const PcgStructure& structure,
                                               const std::vector<int>& stages);

// Returns, by slot, whether another stage computed the value that the slot reads.
std::vector<bool> CrossStageSlots(const PcgStructure& structure, const std::vector<int>& stages);

}  // namespace espalier
