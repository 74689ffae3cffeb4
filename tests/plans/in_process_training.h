// Trains a graph under a plan with one thread per device, over the in-process communicator:
// everything but processes and sockets is what a cluster runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "planner/planner.h"
#include "espalier/v1/plan.pb.h"
#include "storage/dataset.h"

namespace espalier {

struct TrainingRun {
  std::vector<double> losses;                           // by step, summed over the ranks' shares
  std::map<std::string, std::vector<double>> reported;  // all values by name, likewise
  std::vector<double> step_seconds;
  std::vector<int64_t> measured_peak_bytes;  // by rank
  // Rank 0's parameters by name; whole ones only if the plan splits none.
  std::map<std::string, std::vector<char>> parameters;
};

struct TrainingRunOptions {
  int steps = 0;
  int64_t batch_size = 0;
  int threads_per_rank = 1;
  LoweringOptions lowering;
  std::optional<uint64_t> data_seed;  // of the examples' order; the seed of `lowering` otherwise
};

absl::StatusOr<TrainingRun> TrainInProcess(const OpRegistry& registry, const Graph& graph,
                                           const v1::Plan& plan,
                                           std::shared_ptr<const Dataset> dataset,
                                           const TrainingRunOptions& options);

// Of the losses of a run from those of another with as many steps, at any step.
double LargestRelativeDifference(const TrainingRun& reference, const TrainingRun& run);

// `count` equal CPU devices joined by a fast link, with plausible rates.
Machine TestMachine(int count);

v1::Optimizer AdamW(double learning_rate);

// A plan that gives each operator what `choose` says: degrees by axis name and devices (one per
// part).
struct Choice {
  std::map<std::string, int> degrees;
  std::vector<int> devices;
};
absl::StatusOr<v1::Plan> ManualPlan(
    const PlanProblem& problem,
    const std::function<Choice(int index, const Node& node, const SplitRule& rule)>& choose);

// Splits the first axis of a kind in `kinds` that `parts` divides, over devices 0..parts-1; where
// there is none, runs whole on device `index` % parts.
Choice SplitFirst(int index, const SplitRule& rule, const std::vector<AxisKind>& kinds, int parts);

// Samples x 2 and the first parameter axis x 2 on devices 0 to 3; where there is no parameter axis,
// samples alone.
Choice SamplesByParameters(int index, const SplitRule& rule);

// `plan` with another ZeRO stage, planned and predicted anew.
absl::StatusOr<v1::Plan> AtZeroStage(const PlanProblem& problem,
                                        const absl::StatusOr<v1::Plan>& plan, int stage);

}  // namespace espalier
