// LowerPlan: see planner.h. The evaluation program may run in the training program's arena:
// parameters, literals and inputs have the same offsets in both, and its scratch memory lies above
// everything that the training program keeps.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/optimizer/optimizer.h"
#include "planner/lowering/checkpoint_sharding.h"
#include "planner/lowering/lower_training.h"
#include "planner/lowering/offload_recompute_pass.h"
#include "planner/pcg/micro_batches.h"
#include "planner/planner.h"
#include "planner/proto/plan_proto.h"
#include "planner/search/apply_rewrites.h"

namespace espalier {
namespace {

absl::Status CheckMemory(const v1::Program& program, const v1::Device& device) {
  if (device.memory_bytes() <= 0 || program.arena_bytes() <= device.memory_bytes()) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("device ", program.rank(), " needs ", program.arena_bytes(),
                   " bytes for program '", program.name(), "' but has ", device.memory_bytes(),
                   "; use a smaller batch, more devices, or split parameters"));
}

absl::StatusOr<std::vector<v1::Program>> LowerWithLimits(const OpRegistry& registry,
                                                         const Graph& graph, const v1::Plan& plan,
                                                         const LoweringOptions& options,
                                                         const MemoryLimits& limits,
                                                         bool forward_only,
                                                         std::vector<int64_t>* kept_bytes) {
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
  absl::StatusOr<std::vector<v1::Program>> programs = LowerPlacement(
      *structure, placement, table, plan.devices_size(), options, kept_bytes, &limits,
      /*made=*/nullptr, tiles);
  if (!programs.ok()) return programs.status();
  for (v1::Program& program : *programs) {
    program.set_graph_fingerprint(plan.graph_fingerprint());
  }
  return programs;
}

}  // namespace

absl::StatusOr<LoweredPlan> LowerPlan(const OpRegistry& registry, const Graph& given,
                                      const v1::Plan& plan, const LoweringOptions& options) {
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
  absl::StatusOr<std::vector<v1::Program>> programs =
      LowerWithLimits(registry, graph, plan, options, limits, /*forward_only=*/false, &kept);
  if (!programs.ok()) return programs.status();
  lowered.training = *std::move(programs);
  // Evaluation runs in training's arena, or in its own if memory allows.
  const std::vector<int64_t> parameters = kept;
  MemoryLimits none;
  programs = LowerWithLimits(registry, graph, plan, options, none, /*forward_only=*/true, &kept);
  if (!programs.ok()) return programs.status();
  bool fits = true;
  limits.extra_workspace.assign(limits.bytes.size(), 0);
  for (int r = 0; r < plan.devices_size(); ++r) {
    const int64_t training = lowered.training[r].arena_bytes();
    const int64_t evaluation = (*programs)[r].arena_bytes(), memory = limits.bytes[r];
    if (memory <= 0 || evaluation <= training || training + evaluation <= memory) continue;
    limits.bytes[r] = training;
    limits.extra_workspace[r] = memory - training;
    fits = false;
  }
  if (!fits) {
    kept = parameters;
    programs =
        LowerWithLimits(registry, graph, plan, options, limits, /*forward_only=*/true, &kept);
    if (!programs.ok()) return programs.status();
  }
  lowered.evaluation = *std::move(programs);
  for (const std::vector<v1::Program>* all : {&lowered.training, &lowered.evaluation}) {
    for (const v1::Program& program : *all) {
      absl::Status status = CheckMemory(program, plan.devices(program.rank()));
      if (!status.ok()) return status;
    }
  }
  ShardCheckpoints(&lowered.training);
  return lowered;
}

}  // namespace espalier
