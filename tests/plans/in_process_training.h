// Trains a graph under a plan with one thread per device over the in-process communicator:
// everything that a cluster runs except processes and sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "ops/graph/graph.h"
#include "planner/planner.h"
#include "storage/dataset.h"

namespace espalier {

struct InProcessRun {
  std::vector<double> losses;                           // by step, summed over ranks
  std::map<std::string, std::vector<double>> reported;  // all reported values by name
  std::vector<double> step_seconds;
  std::vector<int64_t> measured_peak_bytes;  // by rank
  // Rank 0's parameters by name: shards, unless the plan splits none.
  std::map<std::string, std::vector<char>> parameters;
};

struct TrainingRunOptions {
  int steps = 0;
  int64_t batch_size = 0;
  int threads_per_rank = 1;
  LoweringOptions lowering;
  std::optional<uint64_t> data_seed;  // shuffles examples; default: seed of `lowering`
};

absl::StatusOr<InProcessRun> TrainInProcess(const OpRegistry& registry, const Graph& graph,
                                            const v1::Plan& plan,
                                            std::shared_ptr<const Dataset> dataset,
                                            const TrainingRunOptions& options);

// Returns the largest relative difference of two runs' losses at any step. REQUIRES: equal numbers
// of steps.
double LargestRelativeDifference(const InProcessRun& reference, const InProcessRun& run);

// A machine of `count` equal CPU devices on a fast link, with plausible rates.
Machine TestMachine(int count);

v1::Optimizer AdamW(double learning_rate);

// Makes a plan from `choose`, which returns degrees by axis name and devices (one per part) for
// each operator.
struct Choice {
  std::map<std::string, int> degrees;
  std::vector<int> devices;
};
absl::StatusOr<v1::Plan> ManualPlan(
    const PlanProblem& problem,
    const std::function<Choice(int index, const Node& node, const SplitRule& rule)>& choose);

// Splits the first axis of a kind in `kinds` that `parts` divides over devices 0 to parts-1;
// without one, runs unsplit on device `index` % parts.
Choice SplitFirst(int index, const SplitRule& rule, const std::vector<AxisKind>& kinds, int parts);

// Splits samples by 2 and the first parameter axis by 2 over devices 0 to 3; without a parameter
// axis, samples only.
Choice SamplesByParameters(int index, const SplitRule& rule);

// Returns `plan` at another ZeRO stage, with new predictions.
absl::StatusOr<v1::Plan> WithZeroStage(const PlanProblem& problem,
                                       const absl::StatusOr<v1::Plan>& plan, int stage);

}  // namespace espalier
