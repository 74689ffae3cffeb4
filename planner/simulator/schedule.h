// Part of Simulator: visits the positions of a step in schedule order, and the tasks of a position;
// numbers the program points at which memory changes.
#pragma once

#include "planner/simulator/simulator.h"

namespace espalier {

// Each position has two program points: its operands are resharded, then it runs.
inline int ReshardPoint(int position) { return 2 * position; }
inline int ComputePoint(int position) { return 2 * position + 1; }

template <typename Run>
void Simulator::ForEachPosition(Run run) {
  if (structure_.micro_batches == 1) {
    for (int p = 0; p < static_cast<int>(structure_.positions.size()); ++p) run(p, 0);
    return;
  }
  UpdateSchedule();
  for (const ScheduleItem& item : schedule_) {
    for (int p = item.first; p < item.last && !item.transfers; ++p) run(p, item.micro_batch);
  }
}

template <typename Run>
void Simulator::ForEachTaskOf(int p, Run run) const {
  const Position& position = structure_.positions[p];
  for (int s = position.first_slot; s < position.last_slot; ++s) {
    if (slot_tasks_[s] == nullptr) continue;
    for (const Task& task : slot_tasks_[s]->tasks) run(task);
  }
  for (const Task& task : *position_tasks_[p]) run(task);
}

template <typename Transfer, typename Run>
void Simulator::ForEachScheduled(Transfer transfer, Run run) {
  UpdateSchedule();
  for (const ScheduleItem& item : schedule_) {
    for (int p = item.first; p < item.last; ++p) {
      const Position& position = structure_.positions[p];
      for (int s = position.first_slot; s < position.last_slot; ++s) {
        if (slot_tasks_[s] == nullptr || crossing_[s] != item.transfers) continue;
        transfer(slot_tasks_[s]->tasks, p);
      }
      if (!item.transfers) run(p, item.micro_batch);
    }
  }
}

}  // namespace espalier
