// LowerServing: see planner.h.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "planner/lowering/emitter.h"
#include "planner/memory/stream.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"

namespace espalier {
namespace {

// Which parameters come from the host, and when.
struct Streaming {
  std::vector<ValueId> parameters;
  StreamPlan plan;

  const StreamPlace* PlaceOf(ValueId v) const {
    const auto found = std::find(parameters.begin(), parameters.end(), v);
    if (found == parameters.end()) return nullptr;
    const StreamPlace& place = plan.places[static_cast<size_t>(found - parameters.begin())];
    return place.streams ? &place : nullptr;
  }
};

// Steps are the numbers of the nodes.
absl::StatusOr<Streaming> PlanStreaming(const OpRegistry& registry, const Graph& graph,
                                        const std::vector<bool>& live, int64_t budget) {
  Streaming streaming;
  std::vector<StreamParameter> parameters;
  std::vector<int> index(graph.values().size(), -1);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (!live[n]) continue;
    const OpDef* def = registry.Find(graph.nodes()[n].op);
    const NodeTypes types = graph.TypesOf(static_cast<NodeId>(n));
    for (ValueId v : graph.nodes()[n].inputs) {
      if (v == kNoValue || graph.value(v).kind != ValueKind::kParameter) continue;
      const int step = static_cast<int>(n);
      if (index[v] < 0) {
        index[v] = static_cast<int>(parameters.size());
        streaming.parameters.push_back(v);
        parameters.push_back({graph.value(v).type.bytes(), step, step, false});
      }
      StreamParameter& parameter = parameters[static_cast<size_t>(index[v])];
      parameter.last_use = step;
      if (def != nullptr && def->cost != nullptr) {
        // An operator that reads less than all of it.
        parameter.must_stay |= def->cost(types).bytes < static_cast<double>(parameter.bytes);
      }
    }
  }
  absl::StatusOr<StreamPlan> plan = PlanStream(parameters, budget);
  if (!plan.ok()) {
    return absl::Status(plan.status().code(),
                        absl::StrCat("resident_weight_bytes: ", plan.status().message()));
  }
  streaming.plan = *std::move(plan);
  return streaming;
}

}  // namespace

absl::StatusOr<proto::Program> LowerServing(const OpRegistry& registry, const Graph& graph,
                                            const ServingLowering& options) {
  if (graph.outputs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("graph '", graph.name, "' has no named output to serve"));
  }
  absl::StatusOr<std::vector<proto::DynamicDimension>> dynamic = FindDynamic(graph);
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

  Streaming streaming;
  if (options.resident_weight_bytes > 0) {
    absl::StatusOr<Streaming> planned =
        PlanStreaming(registry, graph, live, options.resident_weight_bytes);
    if (!planned.ok()) return planned.status();
    streaming = *std::move(planned);
  }
  RankProgram rank(0, 1);
  const int stream_buffer =
      streaming.plan.buffer_bytes > 0 ? rank.Allocate(streaming.plan.buffer_bytes) : -1;
  std::vector<int> buffers(graph.values().size(), -1);
  // By node: what begins to come in before it.
  std::vector<std::vector<ValueId>> arriving(graph.nodes().size());
  auto add = [&](ValueId v, proto::BufferKind kind) {
    const Value& value = graph.value(v);
    const StreamPlace* place = streaming.PlaceOf(v);
    buffers[v] =
        rank.AddBuffer(value.name, TensorSpec::Whole(value.type), kind,
                       place != nullptr ? stream_buffer : -1, place != nullptr ? place->offset : 0);
    proto::Buffer* buffer = rank.buffer(buffers[v]);
    buffer->set_dynamic((*dynamic)[v]);
    if (kind == proto::LITERAL || kind == proto::PARAMETER_SHARD) {
      buffer->set_literal(value.constant);
    }
  };
  for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
    if (!needed[v]) continue;
    switch (graph.value(v).kind) {
      case ValueKind::kInput:
        add(v, proto::HOST_INPUT);
        break;
      case ValueKind::kParameter:
        add(v, proto::PARAMETER_SHARD);
        break;
      case ValueKind::kState:
        add(v, proto::PERSISTENT);
        break;
      case ValueKind::kConstant:
        add(v, proto::LITERAL);
        break;
      case ValueKind::kComputed:
        break;
    }
  }
  for (ValueId v : streaming.parameters) {
    const StreamPlace* place = streaming.PlaceOf(v);
    if (place != nullptr) arriving[static_cast<size_t>(place->copy_before)].push_back(v);
  }
  int host_slots = 0;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    for (ValueId v : arriving[n]) {
      proto::SwapInstruction* swap = rank.Emit(node.name)->mutable_swap_in();
      swap->set_buffer(buffers[v]);
      swap->set_host_slot(host_slots++);
    }
    if (!live[n]) continue;
    if (registry.Find(node.op) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("node '", node.name, "': unknown operator '", node.op, "'"));
    }
    proto::ComputeInstruction compute;
    compute.set_op(node.op);
    AttributesToProto(node.attributes, compute.mutable_attributes());
    for (ValueId v : node.inputs) compute.add_inputs(v == kNoValue ? -1 : buffers[v]);
    for (ValueId v : node.outputs) {
      if (v != kNoValue && needed[v]) add(v, proto::SCRATCH);
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
  rank.Finish(0);
  proto::Program program = rank.TakeProgram();
  program.set_name(absl::StrCat(graph.name, "/serving"));
  program.set_host_bytes(streaming.plan.streamed_bytes);
  program.set_row_stable(true);
  program.set_plan_fingerprint(GraphFingerprint(graph));
  for (const auto& [name, value] : graph.outputs) {
    (*program.mutable_outputs())[name] = buffers[value];
  }
  return program;
}

}  // namespace espalier
