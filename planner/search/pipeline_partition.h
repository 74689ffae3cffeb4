// Cuts a sequence of operators into pipeline stages: consecutive operators on consecutive devices.
//
// Dynamic programming over (operators, devices, stages) that minimises the time of the slowest
// stage, which sets the pace of a pipeline: the planner of PipeDream (Narayanan et al., SOSP 2019),
// with DAPPLE's (Fan et al., PPoPP 2021) and Alpa's (Zheng et al., OSDI 2022) groups of devices
// that run a stage together.
#pragma once

#include <functional>
#include <vector>

namespace espalier {

// Of a problem; there are about as many places where a stage may end.
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
  // `first` on. Not asked for counts that `counts` leaves out.
  std::function<double(int op, int first, int count)> seconds;
  // Seconds of one micro-batch, both ways, of what crosses a cut in front of operator `op`: both
  // stages are held for as long.
  std::function<double(int op)> transfer;
  // `seconds` does not depend on `first`.
  bool alike = false;
  // How many devices a stage may have; empty: any number.
  std::vector<int> counts;
  // Optional: once it is true, no stages are found.
  std::function<bool()> stop;
};

// Stages in order, every device used; empty if there are none (fewer operators or devices than
// stages, or counts that do not add up), or it was stopped. The first of equally good ones: it
// depends on nothing but the arguments. At most 128 cuts are tried: of more operators, those with
// the smallest transfer in their neighbourhood.
std::vector<PipelineStage> PartitionPipeline(const PipelinePartitionProblem& problem);

// The seconds of the slowest stage.
double SlowestPipelineStage(const PipelinePartitionProblem& problem, const std::vector<PipelineStage>& stages);

}  // namespace espalier
