#include "planner/plan/pipelines.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/search/stages.h"

namespace espalier {
namespace {

// A graph's operators as a sequence, in its order.
class Sequence {
 public:
  explicit Sequence(Planning& planning)
      : planning_(planning),
        structure_(planning.structure()),
        nodes_(structure_.LiveNodes()),
        crossing_(nodes_.size() + 1, 0),
        parameter_bytes_(structure_.nodes.size(), 0) {
    const Graph& graph = structure_.graph();
    std::vector<int> order(structure_.nodes.size(), -1);
    for (size_t i = 0; i < nodes_.size(); ++i) order[nodes_[i]] = static_cast<int>(i);
    for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
      const Value& value = graph.value(v);
      const double bytes = static_cast<double>(value.type.bytes());
      if (value.kind == ValueKind::kParameter && structure_.base[v].present()) {
        parameter_bytes_[structure_.base[v].node] += bytes;
      }
      if (value.producer == kNoNode || value.producer >= structure_.training.first_backward) {
        continue;
      }
      const int from = order[value.producer];
      int to = from;
      for (int s : structure_.slots_of_value[v]) {
        const Position* position = PositionOf(s);
        if (position != nullptr && position->role == Position::kForward) {
          to = std::max(to, order[position->node]);
        }
      }
      for (int i = from + 1; from >= 0 && i <= to; ++i) crossing_[i] += bytes;
    }
  }

  StageProblem Problem(int stages, bool alike) {
    StageProblem problem;
    problem.operators = static_cast<int>(nodes_.size());
    problem.stages = stages;
    problem.devices = planning_.num_devices();
    // All sizes of groups where there are few devices, else alike ones.
    if (problem.devices > 16 && problem.devices % stages == 0) {
      problem.counts = {problem.devices / stages};
    }
    problem.seconds = [this, alike](int op, int first, int count) {
      return SecondsOf(nodes_[op], alike ? 0 : first, count);
    };
    problem.transfer = [this](int op) {
      const int last = planning_.num_devices() - 1;
      return 2 * planning_.costs().Transfer(0, last, crossing_[op]);
    };
    return problem;
  }

  std::vector<NodeConfig> Configs(const std::vector<Stage>& stages) const {
    std::vector<NodeConfig> configs(structure_.nodes.size());
    for (const Stage& stage : stages) {
      for (int i = stage.first; i < stage.last; ++i) {
        configs[nodes_[i]] = ConfigOf(nodes_[i], stage.first_device, stage.devices);
      }
    }
    return configs;
  }

 private:
  const Position* PositionOf(int slot) const {
    const size_t p = structure_.slots[slot].position;
    return p < structure_.positions.size() ? &structure_.positions[p] : nullptr;
  }

  NodeConfig ConfigOf(NodeId n, int first_device, int devices) const {
    NodeConfig config = DataParallel(structure_.nodes[n].rule, devices);
    for (int& d : config.devices) d += first_device;
    return config;
  }

  double SecondsOf(NodeId n, int first_device, int devices) {
    const NodeConfig config = ConfigOf(n, first_device, devices);
    double seconds = planning_.SecondsOf(n, planning_.table().Get(n, config));
    // Its gradients are added up over the devices once for all micro-batches.
    if (config.devices.size() > 1 && parameter_bytes_[n] > 0) {
      seconds += planning_.costs().Collective(proto::CollectiveInstruction::ALL_REDUCE,
                                              config.devices, parameter_bytes_[n]) /
                 structure_.micro_batches;
    }
    return seconds;
  }

  Planning& planning_;
  const PcgStructure& structure_;
  const std::vector<NodeId> nodes_;
  std::vector<double> crossing_;  // bytes of a micro-batch, by the operator behind the cut
  std::vector<double> parameter_bytes_;
};

bool AllAlike(const Machine& machine) {
  return std::all_of(machine.devices.begin(), machine.devices.end(), [&](const proto::Device& d) {
    return d.SerializeAsString() == machine.devices[0].SerializeAsString();
  });
}

struct Found {
  Pipeline pipeline;
  Placement placement;
  Picoseconds cost = 0;
};

absl::StatusOr<Found> Try(const PlanProblem& problem, int num_devices,
                          const proto::SearchOptions& options, const StepShape& shape) {
  absl::StatusOr<std::unique_ptr<Planning>> planning =
      Planning::Make(problem, num_devices, options.memory(), shape);
  if (!planning.ok()) return planning.status();
  Found found;
  found.pipeline.planning = *std::move(planning);
  Planning& made = *found.pipeline.planning;
  Sequence sequence(made);
  const std::vector<Stage> stages =
      SliceStages(sequence.Problem(options.pipeline_stages(), AllAlike(made.machine())));
  if (stages.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("search.pipeline_stages is ", options.pipeline_stages(), "; there are ",
                     num_devices, " devices and ", made.structure().LiveNodes().size(),
                     " operators, and each stage needs one of both"));
  }
  found.placement = made.FromConfigs(sequence.Configs(stages));
  Simulator simulator(made.structure(), made.table(), made.costs());
  if (absl::Status status = simulator.Reset(found.placement); !status.ok()) return status;
  found.cost = simulator.cost();
  return found;
}

}  // namespace

absl::StatusOr<Pipeline> PlanPipeline(const PlanProblem& problem, int num_devices,
                                      const proto::SearchOptions& options, int zero_stage) {
  const int stages = options.pipeline_stages();
  std::vector<int> counts = {stages, 2 * stages, 4 * stages, 8 * stages};
  if (options.has_micro_batches()) counts = {options.micro_batches()};
  std::vector<Found> all;
  absl::Status first_error;
  for (int count : counts) {
    absl::StatusOr<Found> found =
        Try(problem, num_devices, options, {.zero_stage = zero_stage, .micro_batches = count});
    if (found.ok()) {
      all.push_back(*std::move(found));
    } else if (!absl::IsInvalidArgument(found.status())) {
      return found.status();
    } else {
      first_error.Update(found.status());
    }
  }
  if (all.empty()) return first_error;
  std::stable_sort(all.begin(), all.end(),
                   [](const Found& a, const Found& b) { return a.cost < b.cost; });
  const std::string name = absl::StrCat("pipeline of ", stages);
  for (Found& found : all) {
    absl::StatusOr<Candidate> candidate = found.pipeline.planning->Evaluate(name, found.placement);
    if (!candidate.ok()) return candidate.status();
    found.pipeline.candidate = *std::move(candidate);
    if (found.pipeline.candidate.refused.empty()) return std::move(found.pipeline);
  }
  return std::move(all[0].pipeline);
}

}  // namespace espalier
