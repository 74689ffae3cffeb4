// LowerServing over several devices: see planner.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/lowering/emitter.h"
#include "planner/lowering/serving_shares.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<proto::Program>> Lower(const Graph& given, const PcgStructure& structure,
                                                  const std::vector<NodeConfig>& configs,
                                                  int ranks) {
  ConfigTable table(structure);
  Placement placement(structure.nodes.size(), nullptr);
  for (NodeId n : structure.LiveNodes()) placement[n] = table.Get(n, configs[n]);
  const LoweringOptions options;
  Emitter emitter(structure, placement, table, ranks, options);
  if (absl::Status status = emitter.Run(); !status.ok()) return status;
  std::vector<std::map<std::string, int>> outputs(static_cast<size_t>(ranks));
  for (const auto& [name, value] : structure.outputs) {
    const int device = configs[structure.graph().value(value).producer].devices[0];
    const int buffer = emitter.OutputBuffers(value)[0];
    emitter.ranks()[device].KeepToEnd(buffer);
    outputs[device][name] = buffer;
  }
  const std::string fingerprint = GraphFingerprint(given);
  std::vector<proto::Program> programs;
  for (RankProgram& rank : emitter.ranks()) {
    rank.Finish(0);
    proto::Program program = rank.TakeProgram();
    program.set_name(absl::StrCat(given.name, "/serving"));
    program.set_row_stable(true);
    program.set_plan_fingerprint(fingerprint);
    for (const auto& [name, buffer] : outputs[programs.size()]) {
      (*program.mutable_outputs())[name] = buffer;
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace

absl::StatusOr<std::vector<proto::Program>> LowerServing(const OpRegistry& registry,
                                                         const Graph& graph,
                                                         const ServingDegrees& degrees) {
  if (degrees.tensor_parallel == 1 && degrees.pipeline_parallel == 1) {
    absl::StatusOr<proto::Program> program = LowerServing(registry, graph);
    if (!program.ok()) return program.status();
    return std::vector<proto::Program>{*std::move(program)};
  }
  const absl::StatusOr<SharedServing> shared = ShareOut(registry, graph, degrees);
  if (!shared.ok()) return shared.status();
  return Lower(graph, shared->structure, shared->configs, degrees.ranks());
}

}  // namespace espalier
