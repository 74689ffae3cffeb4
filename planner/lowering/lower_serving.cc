// LowerServing: see planner.h.
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/rewrite/fuse.h"
#include "planner/lowering/emitter.h"
#include "planner/lowering/weight_streaming_pass.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"

namespace espalier {
namespace {

// Fuses the sum before a norm and the products of gates into one pass over memory, and on a GPU
// into one launch. Each row's result still depends on that row alone.
absl::StatusOr<Graph> FuseForServing(const OpRegistry& registry, const Graph& graph) {
  absl::StatusOr<std::vector<RewriteRule>> rules = FusionRules(registry);
  if (!rules.ok()) return rules.status();
  std::erase_if(*rules, [](const RewriteRule& rule) {
    return rule.name != "residual_rms_norm" && rule.name != "residual_layer_norm" &&
           rule.name != "swiglu";
  });
  return Rewrite(registry, graph, *rules);
}

}  // namespace

absl::StatusOr<v1::Program> LowerServing(const OpRegistry& registry, const Graph& given,
                                         const ServingLowering& options) {
  if (given.outputs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("graph '", given.name, "' has no named output to serve"));
  }
  absl::StatusOr<Graph> fused = FuseForServing(registry, given);
  if (!fused.ok()) return fused.status();
  const Graph& graph = *fused;
  absl::StatusOr<std::vector<v1::DynamicDimension>> dynamic = FindDynamicDimensions(graph);
  if (!dynamic.ok()) return dynamic.status();
  std::vector<bool> needed(graph.values().size(), false);
  std::vector<bool> live(graph.nodes().size(), false);
  for (const auto& [name, value] : graph.outputs) needed[value] = true;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    for (ValueId v : graph.nodes()[n].outputs) live[n] = live[n] || (v != kNoValue && needed[v]);
    // A node that writes a state has an effect beyond its outputs.
    for (ValueId v : graph.nodes()[n].inputs) {
      if (v != kNoValue && graph.value(v).kind == ValueKind::kState) live[n] = true;
    }
    if (!live[n]) continue;
    for (ValueId v : graph.nodes()[n].inputs) {
      if (v != kNoValue) needed[v] = true;
    }
  }

  RankProgram rank(0, 1);
  std::vector<int> buffers(graph.values().size(), -1);
  auto add = [&](ValueId v, v1::BufferKind kind) {
    const Value& value = graph.value(v);
    buffers[v] = rank.AddBuffer(value.name, TensorSpec::Whole(value.type), kind);
    v1::Buffer* buffer = rank.buffer(buffers[v]);
    buffer->set_dynamic((*dynamic)[v]);
    if (kind == v1::LITERAL || kind == v1::PARAMETER_SHARD) {
      buffer->set_literal(value.constant);
    }
  };
  for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
    if (!needed[v]) continue;
    switch (graph.value(v).kind) {
      case ValueKind::kInput:
        add(v, v1::HOST_INPUT);
        break;
      case ValueKind::kParameter:
        add(v, v1::PARAMETER_SHARD);
        break;
      case ValueKind::kState:
        add(v, v1::PERSISTENT);
        break;
      case ValueKind::kConstant:
        add(v, v1::LITERAL);
        break;
      case ValueKind::kComputed:
        break;
    }
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (!live[n]) continue;
    if (registry.Find(node.op) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(Describe(node), ": unknown operator"));
    }
    v1::ComputeInstruction compute;
    compute.set_op(node.op);
    AttributesToProto(node.attributes, compute.mutable_attributes());
    for (ValueId v : node.inputs) compute.add_inputs(v == kNoValue ? -1 : buffers[v]);
    for (ValueId v : node.outputs) {
      if (v != kNoValue && needed[v]) add(v, v1::SCRATCH);
      compute.add_outputs(v == kNoValue ? -1 : buffers[v]);
    }
    compute.set_node_key(NodeKey(node.name));
    *rank.Emit(node.name)->mutable_compute() = std::move(compute);
  }
  for (const auto& [name, value] : graph.outputs) {
    if (buffers[value] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("output '", name, "' is computed by no node"));
    }
    rank.KeepToEnd(buffers[value]);
  }
  int64_t streamed_bytes = 0;
  if (options.resident_weight_bytes > 0) {
    const absl::StatusOr<int64_t> streamed =
        RunWeightStreamingPass(PartialUses(registry, graph), options.resident_weight_bytes, &rank);
    if (!streamed.ok()) return streamed.status();
    streamed_bytes = *streamed;
  }
  rank.Finish(0);
  v1::Program program = rank.TakeProgram();
  program.set_name(absl::StrCat(graph.name, "/serving"));
  program.set_host_bytes(streamed_bytes);
  program.set_batch_invariant(true);
  program.set_graph_fingerprint(GraphFingerprint(given));
  for (const auto& [name, value] : graph.outputs) {
    (*program.mutable_outputs())[name] = buffers[value];
  }
  return program;
}

}  // namespace espalier
