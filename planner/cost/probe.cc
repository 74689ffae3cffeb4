#include "planner/cost/probe.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "planner/cost/measured.h"
#include "planner/lowering/rank_program.h"
#include "planner/search/space.h"

namespace espalier {
namespace {

// A program of one instruction over whole tensors.
proto::Program OneOperator(const std::string& op, const Attributes& attributes,
                           const std::vector<TensorType>& inputs,
                           const std::vector<TensorType>& outputs) {
  RankProgram program(0, 1);
  proto::ComputeInstruction compute;
  compute.set_op(op);
  AttributesToProto(attributes, compute.mutable_attributes());
  for (size_t i = 0; i < inputs.size(); ++i) {
    compute.add_inputs(inputs[i].dtype == DType::kInvalid
                           ? -1
                           : program.AddBuffer(absl::StrCat("input", i),
                                               TensorSpec::Whole(inputs[i]), proto::HOST_INPUT));
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    compute.add_outputs(outputs[k].dtype == DType::kInvalid
                            ? -1
                            : program.AddBuffer(absl::StrCat("output", k),
                                                TensorSpec::Whole(outputs[k]), proto::SCRATCH));
  }
  *program.Emit(op)->mutable_compute() = std::move(compute);
  program.Finish(0);
  proto::Program out = program.TakeProgram();
  out.set_name(absl::StrCat("measure/", op));
  return out;
}

std::vector<int> Expand(const OpDef& def, size_t count, int index) {
  if (index >= static_cast<int>(def.inputs.size()) || !def.inputs[index].variadic) return {index};
  std::vector<int> all;
  for (int i = index; i < static_cast<int>(count); ++i) all.push_back(i);
  return all;
}

proto::Program Backward(const OpDef& def, const NodeTypes& types) {
  if (!def.gradient.has_value()) return {};
  auto input = [&](int i) {
    return i < static_cast<int>(types.inputs.size()) ? types.inputs[i] : TensorType();
  };
  std::vector<TensorType> inputs, outputs;
  for (int index : def.gradient->needs_inputs) {
    for (int i : Expand(def, types.inputs.size(), index)) inputs.push_back(input(i));
  }
  for (int k : def.gradient->needs_outputs) inputs.push_back(types.outputs[k]);
  inputs.insert(inputs.end(), types.outputs.begin(), types.outputs.end());
  for (int index : def.gradient->differentiable) {
    for (int i : Expand(def, types.inputs.size(), index)) {
      outputs.push_back(IsFloat(input(i).dtype) ? input(i) : TensorType());
    }
  }
  return OneOperator(def.name + "_grad", types.attributes, inputs, outputs);
}

}  // namespace

absl::StatusOr<std::vector<Probe>> ListProbes(const OpRegistry& registry, const Graph& graph,
                                              int num_devices) {
  absl::StatusOr<PcgStructure> structure = BuildStructure(registry, graph, /*forward_only=*/false);
  if (!structure.ok()) return structure.status();
  const SearchSpace space(*structure, {.num_devices = num_devices});
  std::map<std::string, std::pair<int, Probe>> by_key;
  for (NodeId n : structure->LiveNodes()) {
    const PcgStructure::NodeInfo& info = structure->nodes[n];
    std::set<std::vector<int>> degrees;
    for (const NodeConfig& config : space.All(n)) degrees.insert(config.degrees);
    for (const std::vector<int>& d : degrees) {
      NodeTypes shard = LocalTypes(info.types, info.rule, d);
      auto& [count, probe] = by_key[MeasurementKey(*info.def, shard, proto::Device())];
      if (++count > 1) continue;
      probe.def = info.def;
      probe.forward = OneOperator(info.def->name, shard.attributes, shard.inputs, shard.outputs);
      probe.backward = Backward(*info.def, shard);
      probe.shard = std::move(shard);
    }
  }
  std::vector<std::pair<int, Probe>> sorted;
  for (auto& [key, counted] : by_key) sorted.push_back(std::move(counted));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Probe> probes;
  for (auto& [count, probe] : sorted) probes.push_back(std::move(probe));
  return probes;
}

}  // namespace espalier
