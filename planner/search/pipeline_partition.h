// Cuts a sequence of operators into pipeline stages: consecutive operators on consecutive devices.
//
// Dynamic programming over (operators, devices, stages) that minimizes the time of the slowest
// stage, which sets the pace of a pipeline: the planner of PipeDream (Narayanan et al., SOSP 2019),
// with DAPPLE's (Fan et al., PPoPP 2021) and Alpa's (Zheng et al., OSDI 2022) groups of devices
// that run a stage together.
#pragma once

#include <functional>
#include <vector>

namespace espalier {

// The most stages of a problem; a stage can end at about as many places.
inline constexpr int kMostPipelineStages = 128;

struct PipelineStage {
  int first = 0;  // operators [first, last)
  int last = 0;
  int first_device = 0;
  int devices = 1;

  bool operator==(const PipelineStage&) const = default;
};

struct PipelinePartitionProblem {
  int operators = 0;
  int stages = 1;
  int devices = 1;
  // Seconds of one micro-batch, forward and backward, of an operator on `count` devices from
  // `first` on. Called only for counts in `counts`.
  std::function<double(int op, int first, int count)> seconds;
  // Seconds that one micro-batch's activations and gradients take across a cut in front of operator
  // `op`. Both stages are busy meanwhile.
  std::function<double(int op)> transfer;
  // `seconds` does not depend on `first`.
  bool alike = false;
  // Allowed devices per stage; empty: any number.
  std::vector<int> counts;
  // Optional: once true, no stages are returned.
  std::function<bool()> stop;
};

// Returns the stages in order, with every device used. Returns none if no partition exists (fewer
// operators or devices than stages, or counts that do not add up) or it was stopped. Deterministic:
// of equally good partitions the first. Tries at most 128 cuts: with more operators, those with the
// smallest transfer in their neighborhood.
std::vector<PipelineStage> PartitionPipeline(const PipelinePartitionProblem& problem);

// The seconds of the slowest stage.
double SlowestPipelineStage(const PipelinePartitionProblem& problem,
                            const std::vector<PipelineStage>& stages);

}  // namespace espalier
