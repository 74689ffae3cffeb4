// LowerPlan: see planner.h. The evaluation program may run in the training program's arena:
// parameters, literals and inputs lie at the same offsets in both, and its scratch lies above
// everything that the training program keeps.
#include "absl/strings/str_cat.h"
#include "planner/lowering/emitter.h"
#include "planner/lowering/lower_training.h"
#include "planner/plan/configs.h"
#include "planner/planner.h"

namespace espalier {
namespace {

absl::Status CheckMemory(const proto::Program& program, const proto::Device& device) {
  if (device.memory_bytes() <= 0 || program.arena_bytes() <= device.memory_bytes()) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("device ", program.rank(), " needs ", program.arena_bytes(),
                   " bytes for program '", program.name(), "' but has ", device.memory_bytes(),
                   "; use a smaller batch, more devices, or split parameters"));
}

absl::StatusOr<std::vector<proto::Program>> Lower(const OpRegistry& registry, const Graph& graph,
                                                  const proto::Plan& plan,
                                                  const LoweringOptions& options, bool forward_only,
                                                  std::vector<int64_t>* kept_bytes) {
  absl::StatusOr<PcgStructure> structure = BuildStructure(registry, graph, forward_only);
  if (!structure.ok()) return structure.status();
  absl::StatusOr<std::vector<NodeConfig>> configs = ConfigsFromPlan(*structure, plan);
  if (!configs.ok()) return configs.status();
  ConfigTable table(*structure);
  Placement placement(structure->nodes.size(), nullptr);
  for (NodeId n : structure->LiveNodes()) placement[n] = table.Get(n, (*configs)[n]);
  absl::StatusOr<std::vector<proto::Program>> programs =
      LowerPlacement(*structure, placement, table, plan.devices_size(), options, kept_bytes);
  if (!programs.ok()) return programs.status();
  for (proto::Program& program : *programs) {
    program.set_plan_fingerprint(plan.graph_fingerprint());
    if (absl::Status status = CheckMemory(program, plan.devices(program.rank())); !status.ok()) {
      return status;
    }
  }
  return programs;
}

}  // namespace

absl::StatusOr<std::vector<proto::Program>> LowerPlacement(const PcgStructure& structure,
                                                           const Placement& placement,
                                                           ConfigTable& table, int num_devices,
                                                           const LoweringOptions& options,
                                                           std::vector<int64_t>* kept_bytes) {
  Emitter emitter(structure, placement, table, num_devices, options);
  if (absl::Status status = emitter.Run(); !status.ok()) return status;
  std::vector<proto::Program> programs;
  kept_bytes->resize(num_devices, 0);
  for (int r = 0; r < num_devices; ++r) {
    RankProgram& rank = emitter.ranks()[r];
    (*kept_bytes)[r] = rank.Finish((*kept_bytes)[r]);
    proto::Program program = rank.TakeProgram();
    program.set_name(
        absl::StrCat(structure.graph().name, structure.forward_only ? "/evaluation" : "/training"));
    program.set_seed(options.seed);
    if (!structure.forward_only) *program.mutable_optimizer() = options.optimizer;
    programs.push_back(std::move(program));
  }
  return programs;
}

absl::StatusOr<LoweredPlan> LowerPlan(const OpRegistry& registry, const Graph& graph,
                                      const proto::Plan& plan, const LoweringOptions& options) {
  if (absl::Status status = CheckOptimizer(registry, options.optimizer); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckPlanIsFor(graph, plan); !status.ok()) return status;
  LoweredPlan lowered;
  std::vector<int64_t> kept;
  absl::StatusOr<std::vector<proto::Program>> programs =
      Lower(registry, graph, plan, options, /*forward_only=*/false, &kept);
  if (!programs.ok()) return programs.status();
  lowered.training = *std::move(programs);
  programs = Lower(registry, graph, plan, options, /*forward_only=*/true, &kept);
  if (!programs.ok()) return programs.status();
  lowered.evaluation = *std::move(programs);
  return lowered;
}

}  // namespace espalier
