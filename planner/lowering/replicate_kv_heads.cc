#include "planner/lowering/replicate_kv_heads.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/kernel/packed_weights.h"
#include "ops/kernel/paged_attention_inputs.h"

namespace espalier {
namespace {

using namespace paged_attention;

constexpr char kAttention[] = "paged_attention";

struct Heads {
  int64_t queries = 0, keys = 0, dim = 0;

  bool Divide(int64_t parts) const {
    return queries % parts == 0 && (keys % parts == 0 || parts % keys == 0);
  }
};

Heads HeadsOf(const Graph& graph, const Node& node) {
  const auto heads = [&](Input i) {
    return graph.value(node.inputs[i]).type.dims[1] / node.attributes.Int("head_dim");
  };
  return {heads(kQ), heads(kK), node.attributes.Int("head_dim")};
}

class KvHeadReplicator {
 public:
  KvHeadReplicator(int parts, Graph* graph)
      : parts_(parts), graph_(*graph), consumers_(graph->Consumers()) {}

  absl::StatusOr<ReplicatedParameters> Run() {
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Node& node = graph_.node(n);
      if (node.op != kAttention) continue;
      const Heads heads = HeadsOf(graph_, node);
      if (heads.keys % parts_ == 0) continue;
      attention_ = node.name;
      keys_ = heads.keys;
      head_dim_ = heads.dim;
      times_ = parts_ / heads.keys;
      for (Input i : {kK, kV}) {
        if (absl::Status status = ReplicateHeads(node.inputs[i]); !status.ok()) return status;
      }
      for (size_t i : {kKCache, kVCache, kKScale, kVScale}) {
        if (i >= node.inputs.size() || node.inputs[i] == kNoValue) continue;
        graph_.mutable_value(node.inputs[i]).type.dims[1] *= times_;
      }
    }
    return std::move(parameters_);
  }

 private:
  absl::Status Cannot(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_parallel is ", parts_, ", but '", attention_, "' has ", keys_,
                     " key and value heads, and ", what, "; accepted: divisors of ", keys_));
  }

  // Replicates the heads of `v` and of the values that it is computed from.
  absl::Status ReplicateHeads(ValueId v) {
    const NodeId producer = graph_.value(v).producer;
    if (producer == kNoNode || consumers_[v].size() != 1) {
      return Cannot(absl::StrCat("'", graph_.value(v).name, "' is not theirs alone"));
    }
    Node& node = graph_.mutable_node(producer);
    const auto input = [&](size_t i) { return i < node.inputs.size() ? node.inputs[i] : kNoValue; };
    const bool by_head = graph_.value(v).type.dims.size() == 3;
    if (node.op == "rotary" || node.op == "clip" || (node.op == "rms_norm" && by_head)) {
      return ReplicateHeads(input(0));
    }
    if (node.op == "add") {  // added by an adapter
      absl::Status status = ReplicateHeads(input(0));
      return status.ok() ? ReplicateHeads(input(1)) : status;
    }
    if (node.op == "reshape") {  // between heads * head_dim and heads, head_dim
      std::vector<int64_t> shape = node.attributes.Ints("shape");
      if (shape.size() < 2) return Cannot(absl::StrCat("'", node.name, "' changes their shape"));
      shape[1] *= times_;
      node.attributes.Set("shape", std::move(shape));
      return ReplicateHeads(input(0));
    }
    if (node.op == "lora_linear") return ReplicateHeads(input(2), 1, head_dim_);
    int64_t rows = head_dim_;
    if (node.op == "quantized_linear") {
      if (node.attributes.Int("bits") < 16) {
        if (rows % kPackOutputs != 0) {
          return Cannot(absl::StrCat("the matrix of '", node.name, "' is packed in ", kPackOutputs,
                                     " rows, which heads of ", rows, " straddle"));
        }
        rows /= kPackOutputs;
      }
      node.attributes.Set("out", node.attributes.Int("out") * times_);
    } else if (node.op != "linear") {
      return Cannot(absl::StrCat("'", node.name, "' (", node.op, ") cannot be replicated"));
    }
    absl::Status status = ReplicateHeads(input(1), 0, rows);
    return status.ok() && input(2) != kNoValue ? ReplicateHeads(input(2), 0, head_dim_) : status;
  }

  absl::Status ReplicateHeads(ValueId parameter, size_t dim, int64_t head) {
    Value& value = graph_.mutable_value(parameter);
    if (value.kind != ValueKind::kParameter || consumers_[parameter].size() != 1) {
      return Cannot(absl::StrCat("'", value.name, "' is not theirs alone"));
    }
    value.type.dims[dim] *= times_;
    parameters_[value.name] = {dim, head, times_};
    return absl::OkStatus();
  }

  const int parts_;
  Graph& graph_;
  const std::vector<std::vector<std::pair<NodeId, int>>> consumers_;
  ReplicatedParameters parameters_;
  // Of the attention whose heads are replicated.
  std::string attention_;
  int64_t keys_ = 0, head_dim_ = 0, times_ = 1;
};

}  // namespace

absl::Status CheckHeadsDivide(const Graph& graph, int parts) {
  for (const Node& node : graph.nodes()) {
    if (node.op != kAttention) continue;
    const Heads heads = HeadsOf(graph, node);
    if (heads.Divide(parts)) continue;
    std::string accepted;
    for (int64_t i = 1; i <= heads.queries; ++i) {
      if (heads.Divide(i)) absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", i);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor_parallel is ", parts, ", but '", node.name, "' has ", heads.keys,
        " key and value heads for ", heads.queries, " of queries; accepted: ", accepted));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplicatedParameters> ReplicateKvHeads(int parts, Graph* graph) {
  if (absl::Status status = CheckHeadsDivide(*graph, parts); !status.ok()) return status;
  return KvHeadReplicator(parts, graph).Run();
}

absl::Status PlaceReplicatedParameters(const ReplicatedParameters& parameters, RankProgram* rank) {
  for (int i = 0; i < rank->program().buffers_size(); ++i) {
    if (rank->kind(i) != v1::PARAMETER_SHARD) continue;
    const std::string& name = rank->program().buffers(i).name();
    const auto found = parameters.find(name);
    if (found == parameters.end()) continue;
    const auto& [dim, head, times] = found->second;
    TensorSpec spec = rank->spec(i);
    const int64_t first = spec.offset[dim], copy = first / head;
    if (first % head + spec.dims[dim] > head) {
      return absl::InternalError(absl::StrCat("parameter '", name, "' on rank ",
                                              rank->program().rank(), " has ", spec.dims[dim],
                                              " rows from ", first,
                                              " on, which are of more than "
                                              "one head (",
                                              head, ")"));
    }
    spec.offset[dim] = copy / times * head + first % head;
    spec.global[dim] /= times;
    rank->SetSpec(i, spec);
  }
  return absl::OkStatus();
}

}  // namespace espalier
