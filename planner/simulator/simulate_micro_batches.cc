// Simulator: steps with several micro-batches.
#include <algorithm>

#include "planner/pcg/micro_batches.h"
#include "planner/simulator/schedule.h"

namespace espalier {

void Simulator::UpdateSchedule() {
  std::vector<int> stages = PipelineStagesOf(structure_, placement_, table_.layouts(), devices_);
  if (stages == stages_ && !schedule_.empty()) return;
  stages_ = std::move(stages);
  schedule_ = MakePipelineSchedule(structure_, stages_);
  crossing_ = CrossStageSlots(structure_, stages_);
}

const std::vector<const TaskList*>& Simulator::AccumulationsOf(int p, int micro_batch) {
  accumulations_.clear();
  if (micro_batch == 0) return accumulations_;
  for (const auto& [v, layout] :
       AccumulatedGradients(structure_, placement_, table_.layouts(), structure_.positions[p])) {
    accumulations_.push_back(costs_.Sum(layout, ElementBytes(v), 2));
  }
  return accumulations_;
}

std::vector<double> Simulator::SecondsByNode() {
  std::vector<double> seconds(structure_.nodes.size(), 0);
  std::vector<Picoseconds> clocks(devices_);
  for (int p = 0; p < static_cast<int>(structure_.positions.size()); ++p) {
    const Position& position = structure_.positions[p];
    const NodeId node =
        position.config_node != kNoNode ? position.config_node : position.outputs[0].node;
    std::fill(clocks.begin(), clocks.end(), 0);
    RunPositions(p, p + 1, clocks.data());
    seconds[node] += ToSeconds(*std::max_element(clocks.begin(), clocks.end()));
  }
  return seconds;
}

void Simulator::RunMicroBatches(Picoseconds* clocks) {
  const auto run = [clocks](const TaskList& tasks) {
    for (const Task& task : tasks) RunTask(task, clocks);
  };
  ForEachScheduled([&](const TaskList& tasks, int) { run(tasks); },
                   [&](int p, int micro_batch) {
                     run(*position_tasks_[p]);
                     for (const TaskList* tasks : AccumulationsOf(p, micro_batch)) run(*tasks);
                   });
}

}  // namespace espalier
