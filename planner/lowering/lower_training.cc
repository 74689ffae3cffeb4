// LowerPlacement: see lower_training.h.
#include "planner/lowering/lower_training.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "planner/lowering/emitter.h"
#include "planner/lowering/offload_recompute_pass.h"
#include "planner/lowering/program_workspace.h"

namespace espalier {
namespace {

// Programs with more instructions over all devices are not lowered again with more tiles, which
// would take minutes.
constexpr int64_t kMaxInstructionsToTile = 100'000;

// The backward part takes two thirds of an operator's time, in proportion to its arithmetic.
double SecondsOf(const v1::Instruction& instruction, const MemoryLimits& limits) {
  if (!instruction.has_compute()) return 0;
  const auto found = limits.node_seconds.find(instruction.node());
  if (found == limits.node_seconds.end()) return 0;
  const bool backward = absl::EndsWith(instruction.compute().op(), "_grad");
  return found->second * (backward ? 2.0 / 3 : 1.0 / 3);
}

absl::StatusOr<v1::MemoryPlan> Offload(const PcgStructure& structure, const MemoryLimits& limits,
                                       int device, int64_t reserved_bytes,
                                       const ProgramWorkspace& workspace, RankProgram* program) {
  absl::StatusOr<OffloadSettings> settings = OffloadSettingsOf(limits.options);
  if (!settings.ok()) return settings.status();
  OffloadRequest request;
  request.limit = limits.bytes[device];
  const int64_t apart = limits.extra_workspace.empty() ? -1 : limits.extra_workspace[device];
  if (apart >= 0 && workspace.known && workspace.bytes > apart) {
    return absl::ResourceExhaustedError(absl::StrCat("device ", device, " needs ", workspace.bytes,
                                                     " bytes for kernels' workspace but has ",
                                                     apart, " left for it"));
  }
  request.workspace = apart < 0         ? workspace.bytes
                      : workspace.known ? 0
                                        : std::max<int64_t>(0, workspace.bytes - apart);
  request.workspace_known = workspace.known;
  request.reserved_bytes = reserved_bytes;
  request.settings = *settings;
  // Tiles share the time of their operator.
  std::map<std::pair<std::string, std::string>, int> runs;  // by node and operator
  for (const v1::Instruction& i : program->program().instructions()) {
    if (i.has_compute()) ++runs[{i.node(), i.compute().op()}];
  }
  for (auto& [what, count] : runs) count = std::max(1, count / structure.micro_batches);
  request.seconds = [&](const v1::Instruction& i) {
    const auto found = runs.find({i.node(), i.compute().op()});
    return found == runs.end() ? 0.0 : SecondsOf(i, limits) / found->second;
  };
  absl::StatusOr<v1::MemoryPlan> plan = RunOffloadPass(request, program);
  if (!plan.ok() || limits.overhead_seconds.empty()) return plan;
  // An instruction's overhead is in its operator's time once.
  int more = 0;
  for (const auto& [what, count] : runs) more += (count - 1) * structure.micro_batches;
  plan->set_added_seconds(plan->added_seconds() + more * limits.overhead_seconds[device]);
  return plan;
}

// One attempt to lower with `batch_tiles` tiles for all operators that can be tiled.
class Attempt {
 public:
  Attempt(const PcgStructure& structure, const Placement& placement, ConfigTable& table,
          int num_devices, const LoweringOptions& options, const std::vector<v1::Device>& devices,
          int batch_tiles, bool passes_apart)
      : structure_(structure),
        options_(options),
        devices_(devices),
        batch_tiles_(batch_tiles),
        emitter_(structure, placement, table, num_devices, options, batch_tiles, passes_apart) {}

  absl::Status Emit() {
    if (absl::Status status = emitter_.Run(); !status.ok()) return status;
    for (RankProgram& rank : emitter_.ranks()) {
      if (batch_tiles_ > 1) rank.SplitAllocations();
      const size_t r = workspaces_.size();
      workspaces_.push_back(r < devices_.size() ? WorkspaceOf(*structure_.registry, rank,
                                                              options_.workspace, devices_[r])
                                                : ProgramWorkspace());
    }
    return absl::OkStatus();
  }

  bool tiled() const { return emitter_.tiled(); }
  int64_t instructions() {
    int64_t count = 0;
    for (RankProgram& rank : emitter_.ranks()) count += rank.program().instructions_size();
    return count;
  }

  // `kept_bytes` as in LowerPlacement. Returns ResourceExhausted, with the reason; `hopeless` is
  // set if more tiles would not help.
  absl::Status MakeFit(const MemoryLimits& limits, const std::vector<int64_t>& kept_bytes,
                       std::vector<v1::MemoryPlan>* plans, bool* hopeless) {
    for (size_t r = 0; r < emitter_.ranks().size(); ++r) {
      const int64_t fixed = emitter_.ranks()[r].ScratchBegin(kept_bytes[r]);
      if (limits.bytes[r] <= 0 || fixed <= limits.bytes[r]) continue;
      *hopeless = true;
      const std::vector<int64_t> needs = Needs(0, kept_bytes);
      std::string what;
      for (size_t d = 0; d < needs.size(); ++d) {
        if (limits.bytes[d] <= 0 || needs[d] <= limits.bytes[d]) continue;
        absl::StrAppend(&what, what.empty() ? "" : "; ", "device ", d, " needs ", needs[d],
                        " bytes but has ", limits.bytes[d]);
      }
      return absl::ResourceExhaustedError(
          absl::StrCat(what, " (parameters, optimizer states, constants and inputs alone take ",
                       fixed, " on device ", r, ")"));
    }
    for (size_t r = 0; r < emitter_.ranks().size(); ++r) {
      if (limits.bytes[r] <= 0) continue;
      absl::StatusOr<v1::MemoryPlan> plan =
          Offload(structure_, limits, static_cast<int>(r), kept_bytes[r], workspaces_[r],
                  &emitter_.ranks()[r]);
      if (!plan.ok()) return plan.status();
      (*plans)[r] = *std::move(plan);
    }
    return absl::OkStatus();
  }

  // By device, from `first` on: the bytes of its unmodified program.
  std::vector<int64_t> Needs(size_t first, const std::vector<int64_t>& kept_bytes) {
    std::vector<int64_t> needs(emitter_.ranks().size(), 0);
    for (size_t r = first; r < needs.size(); ++r) {
      RankProgram copy = emitter_.ranks()[r];
      copy.Finish(kept_bytes[r]);
      needs[r] = copy.program().arena_bytes() + KnownWorkspace(r);
    }
    return needs;
  }

  // 0 if it is not known.
  int64_t KnownWorkspace(size_t rank) const {
    return workspaces_[rank].known ? workspaces_[rank].bytes : 0;
  }

  std::vector<v1::Program> Finish(std::vector<int64_t>* kept_bytes,
                                  std::vector<PassBorders>* borders) {
    std::vector<v1::Program> programs;
    for (size_t r = 0; r < emitter_.ranks().size(); ++r) {
      RankProgram& rank = emitter_.ranks()[r];
      (*kept_bytes)[r] = rank.Finish((*kept_bytes)[r]);
      if (const std::vector<int>& m = rank.marks(); borders != nullptr && m.size() == 4) {
        borders->push_back({m[0], m[1], m[2], m[3]});
      }
      v1::Program program = rank.TakeProgram();
      program.set_name(absl::StrCat(structure_.graph().name,
                                    structure_.forward_only ? "/evaluation" : "/training"));
      program.set_seed(options_.seed);
      if (!structure_.forward_only) *program.mutable_optimizer() = options_.optimizer;
      for (const Node& node : structure_.graph().nodes()) {
        if (node.source.empty() || node.forward != kNoNode) continue;
        (*program.mutable_sources())[node.name] = node.source;
      }
      programs.push_back(std::move(program));
    }
    return programs;
  }

 private:
  const PcgStructure& structure_;
  const LoweringOptions& options_;
  const std::vector<v1::Device>& devices_;
  const int batch_tiles_;
  Emitter emitter_;
  std::vector<ProgramWorkspace> workspaces_;  // by rank
};

}  // namespace

double EstimateInstructions(const PcgStructure& structure, const Placement& placement) {
  double parts = 0;
  for (NodeId n : structure.LiveNodes()) {
    parts += static_cast<double>(placement[n]->config.devices.size());
  }
  return structure.forward_only ? parts * structure.micro_batches
                                : EstimateInstructions(parts, structure.micro_batches);
}

double EstimateInstructions(double parts, int micro_batches) { return 3 * parts * micro_batches; }

absl::StatusOr<std::vector<v1::Program>> LowerPlacement(
    const PcgStructure& structure, const Placement& placement, ConfigTable& table, int num_devices,
    const LoweringOptions& options, std::vector<int64_t>* kept_bytes, const MemoryLimits* limits,
    MemoryFit* made, int min_tiles, std::vector<PassBorders>* borders) {
  kept_bytes->resize(num_devices, 0);
  const bool limited = limits != nullptr && limits->may_change_programs() && !limits->bytes.empty();
  const int most = limited ? std::max(MaxBatchTiles(limits->options), min_tiles) : 1;
  std::vector<v1::Device> devices;
  if (limits != nullptr) devices = limits->devices;
  MemoryFit unused;
  if (made == nullptr) made = &unused;
  absl::Status refused;
  for (int tiles = min_tiles;; tiles *= 2) {
    Attempt attempt(structure, placement, table, num_devices, options, devices, tiles,
                    borders != nullptr);
    if (absl::Status status = attempt.Emit(); !status.ok()) return status;
    if (tiles > min_tiles && !attempt.tiled()) return refused;
    std::vector<v1::MemoryPlan> plans(num_devices);
    bool hopeless = false;
    const absl::Status fit =
        limited ? attempt.MakeFit(*limits, *kept_bytes, &plans, &hopeless) : absl::OkStatus();
    if (!fit.ok() && !absl::IsResourceExhausted(fit)) return fit;
    if (tiles == min_tiles) {
      refused = fit;
      // A failed fit leaves the plans empty.
      if (!fit.ok()) made->bytes_without = attempt.Needs(0, *kept_bytes);
      made->bytes_without.resize(num_devices, 0);
      for (int r = 0; r < num_devices; ++r) {
        if (plans[r].bytes_without() > 0) made->bytes_without[r] = plans[r].bytes_without();
      }
    }
    if (fit.ok()) {
      for (int r = 0; r < num_devices; ++r) {
        if (plans[r].bytes_without() > 0) plans[r].set_bytes_without(made->bytes_without[r]);
      }
      made->batch_tiles = tiles;
      made->workspace.clear();
      for (int r = 0; r < num_devices; ++r) {
        made->workspace.push_back(attempt.KnownWorkspace(static_cast<size_t>(r)));
      }
      made->memory = std::move(plans);
      return attempt.Finish(kept_bytes, borders);
    }
    if (hopeless || (tiles == min_tiles && 2 * tiles > most)) return refused;
    if (attempt.instructions() > kMaxInstructionsToTile) {
      return absl::ResourceExhaustedError(absl::StrCat(
          refused.message(), "; more batch tiles than ", tiles,
          " were not tried: the programs have ", attempt.instructions(), " instructions already"));
    }
    if (2 * tiles > most) {
      return absl::ResourceExhaustedError(
          absl::StrCat(refused.message(), "; nor do up to ", tiles, " batch tiles"));
    }
  }
}

}  // namespace espalier
