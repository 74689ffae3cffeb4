// Part of Simulator: the order of what comes before the tail.
#pragma once

#include "planner/simulator/simulator.h"

namespace espalier {

template <typename Run>
void Simulator::ForEachPosition(Run run) {
  if (structure_.micro_batches == 1) {
    for (int p = 0; p < static_cast<int>(structure_.positions.size()); ++p) run(p, 0);
    return;
  }
  UpdateSchedule();
  for (const ScheduleItem& item : schedule_) {
    for (int p = item.first; p < item.last; ++p) run(p, item.micro_batch);
  }
}

}  // namespace espalier
