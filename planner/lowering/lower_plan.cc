// LowerPlan: see planner.h. The evaluation program may run in the training program's arena:
// parameters, literals and inputs lie at the same offsets in both, and its scratch lies above
// everything that the training program keeps.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ops/program/accesses.h"
#include "planner/lowering/emitter.h"
#include "planner/lowering/lower_training.h"
#include "planner/lowering/offload_program.h"
#include "planner/pcg/micro_batches.h"
#include "planner/plan/configs.h"
#include "planner/planner.h"
#include "planner/search/rewritten.h"

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

// The backward part of an operator takes two thirds, as its arithmetic does.
double SecondsOf(const proto::Instruction& instruction, const MemoryLimits& limits) {
  if (!instruction.has_compute()) return 0;
  const auto found = limits.node_seconds.find(instruction.node());
  if (found == limits.node_seconds.end()) return 0;
  const bool backward = absl::EndsWith(instruction.compute().op(), "_grad");
  return found->second * (backward ? 2.0 / 3 : 1.0 / 3);
}

// What kernels need beside the arena is known to the worker alone. Libraries' products (the
// operators that mixed precision narrows) bring their operands into other orders, with padding:
// room for half as much again as the largest ones take is kept free.
int64_t Workspace(const OpRegistry& registry, const RankProgram& program) {
  int64_t most = 0;
  for (const proto::Instruction& instruction : program.program().instructions()) {
    absl::string_view op = instruction.compute().op();
    absl::ConsumeSuffix(&op, "_grad");
    const OpDef* def = registry.Find(std::string(op));
    if (def == nullptr || def->precision != Precision::kNarrow) continue;
    int64_t bytes = 0;
    for (const BufferAccess& access : AccessesOf(instruction)) {
      bytes += program.spec(access.buffer).bytes();
    }
    most = std::max(most, bytes);
  }
  return most / 2 * 3;
}

absl::StatusOr<proto::MemoryPlan> Offload(const PcgStructure& structure, const MemoryLimits& limits,
                                          int device, int64_t reserved_bytes,
                                          RankProgram* program) {
  absl::StatusOr<OffloadSettings> settings = SettingsOf(limits.options);
  if (!settings.ok()) return settings.status();
  OffloadRequest request;
  request.limit = limits.bytes[device];
  const int64_t beside = limits.beside.empty() ? 0 : limits.beside[device];
  request.workspace = std::max<int64_t>(0, Workspace(*structure.registry, *program) - beside);
  request.reserved_bytes = reserved_bytes;
  request.settings = *settings;
  // Slices share the time of their operator.
  std::map<std::pair<std::string, std::string>, int> runs;  // by node and operator
  for (const proto::Instruction& i : program->program().instructions()) {
    if (i.has_compute()) ++runs[{i.node(), i.compute().op()}];
  }
  request.seconds = [&](const proto::Instruction& i) {
    const auto found = runs.find({i.node(), i.compute().op()});
    if (found == runs.end()) return 0.0;
    return SecondsOf(i, limits) / std::max(1, found->second / structure.micro_batches);
  };
  return OffloadProgram(request, program);
}

// LowerPlacement, with the batch in `batch_slices` slices.
absl::StatusOr<std::vector<proto::Program>> LowerInSlices(
    const PcgStructure& structure, const Placement& placement, ConfigTable& table, int num_devices,
    const LoweringOptions& options, int batch_slices, std::vector<int64_t>* kept_bytes,
    const MemoryLimits* limits, std::vector<proto::MemoryPlan>* memory_plans) {
  Emitter emitter(structure, placement, table, num_devices, options, batch_slices);
  if (absl::Status status = emitter.Run(); !status.ok()) return status;
  std::vector<proto::Program> programs;
  kept_bytes->resize(num_devices, 0);
  if (memory_plans != nullptr) memory_plans->assign(num_devices, {});
  for (int r = 0; r < num_devices; ++r) {
    RankProgram& rank = emitter.ranks()[r];
    if (batch_slices > 1) rank.SplitIntoPieces();
    if (limits != nullptr && limits->may_change_programs() && !limits->bytes.empty() &&
        limits->bytes[r] > 0) {
      absl::StatusOr<proto::MemoryPlan> plan =
          Offload(structure, *limits, r, (*kept_bytes)[r], &rank);
      if (!plan.ok()) return plan.status();
      if (memory_plans != nullptr) (*memory_plans)[r] = *std::move(plan);
    }
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

absl::StatusOr<std::vector<proto::Program>> Lower(const OpRegistry& registry, const Graph& graph,
                                                  const proto::Plan& plan,
                                                  const LoweringOptions& options,
                                                  const MemoryLimits& limits, bool forward_only,
                                                  std::vector<int64_t>* kept_bytes) {
  absl::StatusOr<PcgStructure> structure =
      BuildStructure(registry, graph, forward_only, plan.zero_stage());
  if (!structure.ok()) return structure.status();
  if (absl::Status status = CutBatch(MicroBatchesOf(plan), &*structure); !status.ok()) {
    return status;
  }
  absl::StatusOr<std::vector<NodeConfig>> configs = ConfigsFromPlan(*structure, plan);
  if (!configs.ok()) return configs.status();
  ConfigTable table(*structure);
  Placement placement(structure->nodes.size(), nullptr);
  for (NodeId n : structure->LiveNodes()) placement[n] = table.Get(n, (*configs)[n]);
  absl::StatusOr<std::vector<proto::Program>> programs = LowerPlacement(
      *structure, placement, table, plan.devices_size(), options, kept_bytes, &limits);
  if (!programs.ok()) return programs.status();
  for (proto::Program& program : *programs) {
    program.set_plan_fingerprint(plan.graph_fingerprint());
  }
  return programs;
}

}  // namespace

absl::StatusOr<std::vector<proto::Program>> LowerPlacement(
    const PcgStructure& structure, const Placement& placement, ConfigTable& table, int num_devices,
    const LoweringOptions& options, std::vector<int64_t>* kept_bytes, const MemoryLimits* limits,
    std::vector<proto::MemoryPlan>* memory_plans) {
  std::vector<int64_t> kept;
  for (int slices = 1;; slices *= 2) {
    kept = *kept_bytes;
    absl::StatusOr<std::vector<proto::Program>> programs = LowerInSlices(
        structure, placement, table, num_devices, options, slices, &kept, limits, memory_plans);
    if (absl::IsResourceExhausted(programs.status()) && 2 * slices <= options.max_batch_slices) {
      continue;
    }
    *kept_bytes = std::move(kept);
    return programs;
  }
}

absl::StatusOr<LoweredPlan> LowerPlan(const OpRegistry& registry, const Graph& given,
                                      const proto::Plan& plan, const LoweringOptions& options) {
  if (absl::Status status = CheckOptimizer(registry, options.optimizer); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckPlanIsFor(given, plan); !status.ok()) return status;
  absl::StatusOr<Graph> rewritten;
  if (plan.rewrites_size() > 0) {
    rewritten = RewrittenGraph(registry, given, plan);
    if (!rewritten.ok()) return rewritten.status();
  }
  const Graph& graph = plan.rewrites_size() > 0 ? *rewritten : given;
  MemoryLimits limits;
  limits.options = plan.memory();
  for (const proto::Device& device : plan.devices()) limits.bytes.push_back(device.memory_bytes());
  for (const proto::OperatorPlan& op : plan.operators()) {
    limits.node_seconds[op.node()] = op.predicted_seconds() / MicroBatchesOf(plan);
  }
  LoweredPlan lowered;
  std::vector<int64_t> kept;
  absl::StatusOr<std::vector<proto::Program>> programs =
      Lower(registry, graph, plan, options, limits, /*forward_only=*/false, &kept);
  if (!programs.ok()) return programs.status();
  lowered.training = *std::move(programs);
  // Evaluation runs in the arena of training, or in one of its own where there is room for it.
  const std::vector<int64_t> parameters = kept;
  MemoryLimits none;
  programs = Lower(registry, graph, plan, options, none, /*forward_only=*/true, &kept);
  if (!programs.ok()) return programs.status();
  bool fits = true;
  limits.beside.assign(limits.bytes.size(), 0);
  for (int r = 0; r < plan.devices_size(); ++r) {
    const int64_t training = lowered.training[r].arena_bytes();
    const int64_t evaluation = (*programs)[r].arena_bytes(), memory = limits.bytes[r];
    if (memory <= 0 || evaluation <= training || training + evaluation <= memory) continue;
    limits.bytes[r] = training;
    limits.beside[r] = memory - training;
    fits = false;
  }
  if (!fits) {
    kept = parameters;
    programs = Lower(registry, graph, plan, options, limits, /*forward_only=*/true, &kept);
    if (!programs.ok()) return programs.status();
  }
  lowered.evaluation = *std::move(programs);
  for (const std::vector<proto::Program>* all : {&lowered.training, &lowered.evaluation}) {
    for (const proto::Program& program : *all) {
      absl::Status status = CheckMemory(program, plan.devices(program.rank()));
      if (!status.ok()) return status;
    }
  }
  return lowered;
}

}  // namespace espalier
