// Simulator: steps of several micro-batches.
#include "planner/pcg/micro_batches.h"

#include <algorithm>

#include "planner/simulator/positions.h"

namespace espalier {

void Simulator::UpdateSchedule() {
  std::vector<int> stages = StagesOf(structure_, placement_, table_.layouts(), devices_);
  if (stages == stages_ && !schedule_.empty()) return;
  stages_ = std::move(stages);
  schedule_ = MakeSchedule(structure_, stages_);
}

const std::vector<const TaskList*>& Simulator::AccumulationsOf(int p, int micro_batch) {
  accumulations_.clear();
  if (micro_batch == 0) return accumulations_;
  for (const auto& [v, layout] :
       AddedUp(structure_, placement_, table_.layouts(), structure_.positions[p])) {
    accumulations_.push_back(costs_.Sum(layout, ElementBytes(v), 2));
  }
  return accumulations_;
}

void Simulator::SweepMicroBatches() {
  std::vector<Picoseconds> clocks(devices_, 0);
  ForEachPosition([&](int p, int micro_batch) {
    const Position& position = structure_.positions[p];
    for (int s = position.first_slot; s < position.last_slot; ++s) {
      if (slot_tasks_[s] == nullptr) continue;
      for (const Task& task : slot_tasks_[s]->tasks) RunTask(task, clocks.data());
    }
    for (const Task& task : *position_tasks_[p]) RunTask(task, clocks.data());
    for (const TaskList* tasks : AccumulationsOf(p, micro_batch)) {
      for (const Task& task : *tasks) RunTask(task, clocks.data());
    }
  });
  std::copy(clocks.begin(), clocks.end(), rows_.end() - devices_);
}

}  // namespace espalier
