// LowerServing over several devices: see planner.h.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/lowering/emitter.h"
#include "planner/lowering/tensor_parallel_sharding.h"
#include "planner/lowering/weight_streaming_pass.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"

namespace espalier {
namespace {

// Returns, by rank, the bytes that every step copies. The error is that of the rank that needs
// most, so that the budget it asks for suffices for all.
absl::StatusOr<std::vector<int64_t>> Stream(const OpRegistry& registry, const Graph& graph,
                                            int64_t budget, std::vector<RankProgram>* ranks) {
  std::vector<int64_t> streamed(ranks->size(), 0);
  if (budget <= 0) return streamed;
  const std::set<ParameterUse> partial = PartialUses(registry, graph);
  std::vector<int64_t> least;
  for (RankProgram& rank : *ranks) {
    rank.MergePrologue();
    least.push_back(MinResidentBytes(partial, rank));
  }
  const auto most = std::max_element(least.begin(), least.end()) - least.begin();
  if (least[static_cast<size_t>(most)] > budget) {
    const absl::Status status =
        RunWeightStreamingPass(partial, budget, &(*ranks)[static_cast<size_t>(most)]).status();
    return absl::Status(status.code(),
                        absl::StrCat("rank ", most, " of ", ranks->size(), ": ", status.message()));
  }
  for (size_t r = 0; r < ranks->size(); ++r) {
    const absl::StatusOr<int64_t> bytes = RunWeightStreamingPass(partial, budget, &(*ranks)[r]);
    if (!bytes.ok()) return bytes.status();
    streamed[r] = *bytes;
  }
  return streamed;
}

absl::StatusOr<std::vector<v1::Program>> LowerForServing(const OpRegistry& registry,
                                                         const Graph& given,
                                                         const ShardedServing& sharded, int ranks,
                                                         const ServingLowering& serving) {
  const PcgStructure& structure = sharded.structure;
  const std::vector<NodeConfig>& configs = sharded.configs;
  ConfigTable table(structure);
  Placement placement(structure.nodes.size(), nullptr);
  for (NodeId n : structure.LiveNodes()) placement[n] = table.Get(n, configs[n]);
  const LoweringOptions options;
  Emitter emitter(structure, placement, table, ranks, options);
  if (absl::Status status = emitter.Run(); !status.ok()) return status;
  for (RankProgram& rank : emitter.ranks()) {
    if (absl::Status status = PlaceReplicatedParameters(sharded.replicated, &rank); !status.ok())
      return status;
  }
  std::vector<std::map<std::string, int>> outputs(static_cast<size_t>(ranks));
  for (const auto& [name, value] : structure.outputs) {
    const int device = configs[structure.graph().value(value).producer].devices[0];
    const int buffer = emitter.OutputBuffers(value)[0];
    emitter.ranks()[device].KeepToEnd(buffer);
    outputs[device][name] = buffer;
  }
  const std::string fingerprint = GraphFingerprint(given);
  absl::StatusOr<std::vector<int64_t>> streamed =
      Stream(registry, structure.graph(), serving.resident_weight_bytes, &emitter.ranks());
  if (!streamed.ok()) return streamed.status();
  std::vector<v1::Program> programs;
  for (RankProgram& rank : emitter.ranks()) {
    rank.Finish(0);
    v1::Program program = rank.TakeProgram();
    program.set_host_bytes((*streamed)[programs.size()]);
    program.set_name(absl::StrCat(given.name, "/serving"));
    program.set_batch_invariant(true);
    program.set_graph_fingerprint(fingerprint);
    for (const auto& [name, buffer] : outputs[programs.size()]) {
      (*program.mutable_outputs())[name] = buffer;
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace

absl::StatusOr<std::vector<v1::Program>> LowerServing(const OpRegistry& registry,
                                                      const Graph& graph,
                                                      const ServingDegrees& degrees,
                                                      const ServingLowering& options) {
  if (degrees.tensor_parallel == 1 && degrees.pipeline_parallel == 1) {
    absl::StatusOr<v1::Program> program = LowerServing(registry, graph, options);
    if (!program.ok()) return program.status();
    return std::vector<v1::Program>{*std::move(program)};
  }
  const absl::StatusOr<ShardedServing> sharded = ShardServingGraph(registry, graph, degrees);
  if (!sharded.ok()) return sharded.status();
  return LowerForServing(registry, graph, *sharded, degrees.ranks(), options);
}

}  // namespace espalier
