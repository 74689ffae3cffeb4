// LowerServing over several devices: see planner.h.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/lowering/emitter.h"
#include "planner/lowering/serving_shares.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"

namespace espalier {
namespace {

constexpr int kMostRanks = 1024;

absl::Status CheckDegrees(const ServingDegrees& degrees) {
  for (const auto& [name, degree] : {std::pair("tensor_parallel", degrees.tensor_parallel),
                                     std::pair("pipeline_parallel", degrees.pipeline_parallel)}) {
    if (degree < 1 || degree > kMostRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", degree, "; accepted: 1 to ", kMostRanks));
    }
  }
  if (degrees.ranks() <= kMostRanks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor_parallel x pipeline_parallel is ",
                                                 degrees.ranks(), "; accepted: up to ",
                                                 kMostRanks));
}

// The graph with its named outputs as results of nodes of their own, and with the biases of `apart`
// added by nodes of their own.
absl::StatusOr<Graph> Prepared(const OpRegistry& registry, const Graph& given,
                               const std::set<std::string>& apart) {
  Graph graph;
  graph.name = given.name;
  graph.metadata = given.metadata;
  std::vector<ValueId> moved(given.values().size(), kNoValue);
  for (size_t v = 0; v < given.values().size(); ++v) {
    const Value& value = given.values()[v];
    if (value.kind != ValueKind::kComputed) moved[v] = graph.AddValue(value);
  }
  const auto add = [&](std::string name, std::string op, std::vector<ValueId> inputs) {
    Node node;
    node.name = name;
    node.op = std::move(op);
    node.inputs = std::move(inputs);
    Value value;
    value.name = std::move(name);
    node.outputs = {graph.AddValue(std::move(value))};
    const ValueId result = node.outputs[0];
    graph.AddNode(std::move(node));
    return result;
  };
  for (const Node& from : given.nodes()) {
    Node node = from;
    for (ValueId& v : node.inputs) v = v == kNoValue ? kNoValue : moved[v];
    for (ValueId& v : node.outputs) {
      if (v == kNoValue) continue;
      const ValueId before = v;
      v = moved[before] = graph.AddValue(given.value(before));
    }
    ValueId bias = kNoValue;
    if (apart.count(from.name) > 0) {
      bias = node.inputs[2];
      node.inputs.resize(2);
    }
    const ValueId product = node.outputs[0];
    graph.AddNode(std::move(node));
    if (bias == kNoValue) continue;
    moved[from.outputs[0]] = add(absl::StrCat(from.name, ".plus_bias"), "add", {product, bias});
  }
  for (const auto& [name, value] : given.outputs) {
    graph.outputs.emplace_back(name,
                               add(absl::StrCat("outputs.", name), "identity", {moved[value]}));
  }
  if (absl::Status status = BindAndInfer(registry, 1, &graph); !status.ok()) return status;
  return graph;
}

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
  if (absl::Status status = CheckDegrees(degrees); !status.ok()) return status;
  if (degrees.ranks() == 1) {
    absl::StatusOr<proto::Program> program = LowerServing(registry, graph);
    if (!program.ok()) return program.status();
    return std::vector<proto::Program>{*std::move(program)};
  }
  // Which biases are in the way is known only once everything has been shared out.
  std::set<std::string> apart;
  while (true) {
    const absl::StatusOr<Graph> prepared = Prepared(registry, graph, apart);
    if (!prepared.ok()) return prepared.status();
    const absl::StatusOr<PcgStructure> structure = BuildServingStructure(registry, *prepared);
    if (!structure.ok()) return structure.status();
    const absl::StatusOr<std::vector<NodeConfig>> configs = ShareServing(*structure, degrees);
    if (!configs.ok()) return configs.status();
    const std::vector<NodeId> biases = BiasesInTheWay(*structure, *configs);
    if (biases.empty()) return Lower(graph, *structure, *configs, degrees.ranks());
    for (NodeId n : biases) apart.insert(structure->graph().node(n).name);
  }
}

}  // namespace espalier
