#include "planner/plan/pipeline_plan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/parallel.h"
#include "planner/pcg/operator_sequence.h"
#include "planner/search/pipeline_partition.h"

namespace espalier {
namespace {

// Stages of a sequence, each data-parallel over its devices.
class Slicer {
 public:
  explicit Slicer(Planning& planning)
      : planning_(planning), structure_(planning.structure()), sequence_(structure_) {}

  PipelinePartitionProblem Problem(int stages, bool alike) {
    PipelinePartitionProblem problem;
    problem.operators = static_cast<int>(sequence_.nodes().size());
    problem.stages = stages;
    problem.devices = planning_.num_devices();
    // With few devices all group sizes, otherwise sizes as equal as possible.
    if (problem.devices > 16) {
      problem.counts = {problem.devices / stages, (problem.devices + stages - 1) / stages};
    }
    problem.alike = alike;
    problem.seconds = [this](int op, int first, int count) { return SecondsOf(op, first, count); };
    problem.transfer = [this](int op) {
      const int last = planning_.num_devices() - 1;
      return 2 * planning_.costs().Transfer(0, last, sequence_.Crossing(op));
    };
    return problem;
  }

  std::vector<NodeConfig> Configs(const std::vector<PipelineStage>& stages) const {
    std::vector<NodeConfig> configs(structure_.nodes.size());
    for (const PipelineStage& stage : stages) {
      for (int i = stage.first; i < stage.last; ++i) {
        const NodeId n = sequence_.nodes()[i];
        configs[n] = ConfigOf(n, stage.first_device, stage.devices);
      }
    }
    return configs;
  }

 private:
  NodeConfig ConfigOf(NodeId n, int first_device, int devices) const {
    NodeConfig config = DataParallel(structure_.nodes[n].rule, devices);
    for (int& d : config.devices) d += first_device;
    return config;
  }

  double SecondsOf(int op, int first_device, int devices) {
    const NodeId n = sequence_.nodes()[op];
    const NodeConfig config = ConfigOf(n, first_device, devices);
    double seconds = planning_.SecondsOf(n, planning_.table().Get(n, config));
    // Gradients are reduced once for all micro-batches.
    if (config.devices.size() > 1 && sequence_.ParameterBytes(op) > 0) {
      seconds += planning_.costs().Collective(v1::CollectiveInstruction::ALL_REDUCE, config.devices,
                                              sequence_.ParameterBytes(op)) /
                 structure_.micro_batches;
    }
    return seconds;
  }

  Planning& planning_;
  const PcgStructure& structure_;
  const OperatorSequence sequence_;
};

struct Found {
  Pipeline pipeline;
  Placement placement;
  Picoseconds cost = 0;  // including the memory penalty
  double seconds = 0;    // without it
};

absl::Status TooManyStages(int stages, int num_devices, const std::string& operators) {
  return absl::InvalidArgumentError(absl::StrCat(
      "search.pipeline_stages is ", stages, "; there are ", num_devices, " devices", operators,
      ", and each stage needs ", operators.empty() ? "one" : "one of both"));
}

absl::StatusOr<Found> Try(const PlanProblem& problem, int num_devices,
                          const v1::SearchOptions& options, const StepConfig& shape) {
  absl::StatusOr<std::unique_ptr<Planning>> planning =
      Planning::Make(problem, num_devices, options.memory(), shape);
  if (!planning.ok()) return planning.status();
  Found found;
  found.pipeline.planning = *std::move(planning);
  Planning& made = *found.pipeline.planning;
  Slicer slicer(made);
  PipelinePartitionProblem partition =
      slicer.Problem(options.pipeline_stages(), AllDevicesEqual(made.machine()));
  partition.stop = problem.stop;
  const std::vector<PipelineStage> stages = PartitionPipeline(partition);
  if (stages.empty() && problem.stop && problem.stop()) {
    return absl::CancelledError("planning was stopped before it had found stages");
  }
  if (stages.empty()) {
    return TooManyStages(options.pipeline_stages(), num_devices,
                         absl::StrCat(" and ", made.structure().LiveNodes().size(), " operators"));
  }
  found.placement = made.FromConfigs(slicer.Configs(stages));
  Simulator simulator(made.structure(), made.table(), made.costs());
  made.PriceMemory(found.placement, &simulator);
  if (absl::Status status = simulator.Reset(found.placement); !status.ok()) return status;
  found.cost = simulator.cost();
  found.seconds = ToSeconds(simulator.time());
  return found;
}

}  // namespace

absl::StatusOr<Pipeline> PlanPipeline(const PlanProblem& problem, int num_devices,
                                      const v1::SearchOptions& options, int zero_stage,
                                      double most_instructions) {
  const int stages = options.pipeline_stages();
  // Of the whole batch.
  if (stages > num_devices) return TooManyStages(stages, num_devices, "");
  std::vector<int> counts = {stages, 2 * stages, 4 * stages, 8 * stages};
  if (options.has_micro_batches()) counts = {options.micro_batches()};
  const double of_stage = (num_devices + stages - 1) / stages;
  DropTooLongPrograms(static_cast<double>(problem.graph->nodes().size()) * of_stage,
                      most_instructions, &counts);
  std::vector<absl::StatusOr<Found>> tried(counts.size());
  ForEachApart(problem, static_cast<int>(counts.size()), [&](int i, const OwnProblem& own) {
    tried[i] =
        Try(*own, num_devices, options, {.zero_stage = zero_stage, .micro_batches = counts[i]});
    if (tried[i].ok()) tried[i]->pipeline.planning->Keep(own);
  });
  std::vector<Found> all;
  absl::Status first_error;
  for (absl::StatusOr<Found>& found : tried) {
    if (found.ok()) {
      all.push_back(*std::move(found));
    } else if (!absl::IsInvalidArgument(found.status()) && !absl::IsCancelled(found.status())) {
      return found.status();
    } else {
      first_error.Update(found.status());
    }
  }
  if (all.empty()) return first_error;
  std::stable_sort(all.begin(), all.end(),
                   [](const Found& a, const Found& b) { return a.cost < b.cost; });
  const std::string name = absl::StrCat("pipeline of ", stages);
  // In order of estimated time; memory costs are known only after lowering.
  Pipeline* best = nullptr;
  for (Found& found : all) {
    const bool fits = best != nullptr && best->candidate.refused.empty();
    if (fits && found.seconds >= best->candidate.prediction.step_seconds()) continue;
    absl::StatusOr<Candidate> candidate = found.pipeline.planning->Evaluate(name, found.placement);
    if (!candidate.ok()) return candidate.status();
    found.pipeline.candidate = *std::move(candidate);
    const Candidate& made = found.pipeline.candidate;
    // A plan that more memory would fix is a better answer than one that nothing would.
    const bool less_refused =
        !fits && best != nullptr && made.lacks_memory && !best->candidate.lacks_memory;
    if (best == nullptr || less_refused ||
        (made.refused.empty() &&
         (!fits || made.prediction.step_seconds() < best->candidate.prediction.step_seconds()))) {
      best = &found.pipeline;
    }
  }
  return std::move(*best);
}

}  // namespace espalier
