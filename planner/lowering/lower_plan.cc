// LowerPlan: see planner.h. The evaluation program may run in the training program's arena:
// parameters, literals and inputs have the same offsets in both, and its scratch memory lies above
// everything that the training program keeps.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/optimizer/optimizer.h"
#include "planner/lowering/checkpoint_sharding.h"
#include "planner/lowering/lower_session.h"
#include "planner/lowering/lower_training.h"
#include "planner/lowering/offload_recompute_pass.h"
#include "planner/pcg/micro_batches.h"
#include "planner/planner.h"
#include "planner/proto/plan_proto.h"
#include "planner/search/apply_rewrites.h"

namespace espalier {
namespace {

absl::Status CheckMemory(int rank, int64_t needed, const v1::Device& device) {
  if (device.memory_bytes() <= 0 || needed <= device.memory_bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "device ", rank, " needs ", needed, " bytes for its programs and kernels' workspace but has ",
      device.memory_bytes(), "; use a smaller batch, more devices, or split parameters"));
}

// Programs, and by rank the bytes of their kernels' workspace, 0 where it is not known.
struct Lowered {
  std::vector<v1::Program> programs;
  std::vector<int64_t> workspace;
};

// The bytes of device memory that training takes with evaluation, which uses training's arena and
// workspace, or its own where those are too small.
int64_t PeakBytes(const Lowered& training, const Lowered& evaluation, int rank) {
  const auto both = [](int64_t first, int64_t second) {
    return first + (second > first ? second : 0);
  };
  return both(training.programs[rank].arena_bytes(), evaluation.programs[rank].arena_bytes()) +
         both(training.workspace[rank], evaluation.workspace[rank]);
}

absl::StatusOr<Lowered> LowerWithLimits(const OpRegistry& registry, const Graph& graph,
                                        const v1::Plan& plan, const LoweringOptions& options,
                                        const MemoryLimits& limits, bool forward_only,
                                        std::vector<int64_t>* kept_bytes,
                                        std::vector<PassBorders>* borders = nullptr) {
  const int tiles = forward_only ? 1 : BatchTilesOf(plan);
  absl::StatusOr<PcgStructure> structure =
      BuildStructure(registry, graph, forward_only, plan.zero_stage());
  if (!structure.ok()) return structure.status();
  if (absl::Status status = SplitIntoMicroBatches(MicroBatchesOf(plan), &*structure);
      !status.ok()) {
    return status;
  }
  absl::StatusOr<std::vector<NodeConfig>> configs = ConfigsFromPlan(*structure, plan);
  if (!configs.ok()) return configs.status();
  ConfigTable table(*structure);
  Placement placement(structure->nodes.size(), nullptr);
  for (NodeId n : structure->LiveNodes()) placement[n] = table.Get(n, (*configs)[n]);
  if (!forward_only) {
    absl::Status alike = CheckRunningStatistics(*structure, placement, table.layouts());
    if (!alike.ok()) return alike;
  }
  const double instructions = EstimateInstructions(*structure, placement) * tiles;
  if (instructions > kMaxInstructions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan: its programs would have about ", instructions, " instructions, in ",
        structure->micro_batches, " micro-batches on ", plan.devices_size(), " devices; at most ",
        kMaxInstructions, " are written: use fewer micro-batches, or fewer devices"));
  }
  MemoryFit made;
  absl::StatusOr<std::vector<v1::Program>> programs =
      LowerPlacement(*structure, placement, table, plan.devices_size(), options, kept_bytes,
                     &limits, &made, tiles, borders);
  if (!programs.ok()) return programs.status();
  for (v1::Program& program : *programs) {
    program.set_graph_fingerprint(plan.graph_fingerprint());
  }
  return Lowered{*std::move(programs), std::move(made.workspace)};
}

// `kept`: the bytes of parameters and optimizer states, by device. Evaluation runs in training's
// arena and workspace, or in its own if memory allows.
absl::StatusOr<Lowered> LowerEvaluation(const OpRegistry& registry, const Graph& graph,
                                        const v1::Plan& plan, const LoweringOptions& options,
                                        MemoryLimits limits, const Lowered& training,
                                        const std::vector<int64_t>& kept) {
  MemoryLimits none;
  none.devices = limits.devices;
  std::vector<int64_t> kept_bytes = kept;
  absl::StatusOr<Lowered> evaluation =
      LowerWithLimits(registry, graph, plan, options, none, /*forward_only=*/true, &kept_bytes);
  if (!evaluation.ok()) return evaluation.status();
  bool fits = true;
  limits.extra_workspace.assign(limits.bytes.size(), -1);
  for (int r = 0; r < plan.devices_size(); ++r) {
    const int64_t memory = limits.bytes[r], trained = training.programs[r].arena_bytes();
    if (memory <= 0 || PeakBytes(training, *evaluation, r) <= memory) continue;
    limits.bytes[r] = trained;
    limits.extra_workspace[r] =
        std::max(training.workspace[r], memory - trained - training.workspace[r]);
    fits = false;
  }
  if (fits) return evaluation;
  kept_bytes = kept;
  return LowerWithLimits(registry, graph, plan, options, limits, /*forward_only=*/true,
                         &kept_bytes);
}

// With `borders`, for a session.
absl::StatusOr<LoweredPlan> Lower(const OpRegistry& registry, const Graph& given,
                                  const v1::Plan& plan, const LoweringOptions& options,
                                  std::vector<PassBorders>* borders) {
  if (absl::Status status = CheckOptimizer(registry, options.optimizer); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckPlanIsFor(given, plan); !status.ok()) return status;
  absl::Status tiles = CheckBatchTiles(plan.batch_tiles(), "plan: field 'batch_tiles'");
  if (!tiles.ok()) return tiles;
  absl::StatusOr<Graph> rewritten;
  if (plan.rewrites_size() > 0) {
    rewritten = RewrittenGraph(registry, given, plan);
    if (!rewritten.ok()) return rewritten.status();
  }
  const Graph& graph = plan.rewrites_size() > 0 ? *rewritten : given;
  MemoryLimits limits;
  limits.options = plan.memory();
  for (const v1::Device& device : plan.devices()) limits.AddDevice(device);
  for (const v1::OperatorPlan& op : plan.operators()) {
    limits.node_seconds[op.node()] = op.predicted_seconds() / MicroBatchesOf(plan);
  }
  LoweredPlan lowered;
  std::vector<int64_t> kept;
  absl::StatusOr<Lowered> training = LowerWithLimits(registry, graph, plan, options, limits,
                                                     /*forward_only=*/false, &kept, borders);
  if (!training.ok()) return training.status();
  if (options.evaluates) {
    absl::StatusOr<Lowered> evaluation =
        LowerEvaluation(registry, graph, plan, options, limits, *training, kept);
    if (!evaluation.ok()) return evaluation.status();
    for (int r = 0; r < plan.devices_size(); ++r) {
      lowered.peak_bytes.push_back(PeakBytes(*training, *evaluation, r));
    }
    lowered.evaluation = std::move(evaluation->programs);
  } else {
    for (int r = 0; r < plan.devices_size(); ++r) {
      lowered.peak_bytes.push_back(training->programs[r].arena_bytes() + training->workspace[r]);
    }
  }
  for (int r = 0; r < plan.devices_size(); ++r) {
    absl::Status status = CheckMemory(r, lowered.peak_bytes[r], plan.devices(r));
    if (!status.ok()) return status;
  }
  lowered.training = std::move(training->programs);
  ShardCheckpoints(&lowered.training);
  return lowered;
}

}  // namespace

absl::StatusOr<LoweredPlan> LowerPlan(const OpRegistry& registry, const Graph& graph,
                                      const v1::Plan& plan, const LoweringOptions& options) {
  return Lower(registry, graph, plan, options, nullptr);
}

absl::StatusOr<LoweredSession> LowerSession(const OpRegistry& registry, const Graph& graph,
                                            const v1::Plan& plan, const LoweringOptions& options) {
  LoweredSession session;
  absl::StatusOr<LoweredPlan> programs = Lower(registry, graph, plan, options, &session.borders);
  if (!programs.ok()) return programs.status();
  session.programs = *std::move(programs);
  return session;
}

}  // namespace espalier
