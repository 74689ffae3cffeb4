#include "server/jobs/index_ranges.h"

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Returns the input whose values are those of `id`, perhaps in another shape; null if there is
// none.
const Value* InputOf(const OpRegistry& registry, const Graph& graph, ValueId id) {
  while (id != kNoValue && IsInteger(graph.value(id).type.dtype)) {
    const Value& value = graph.value(id);
    if (value.kind == ValueKind::kInput) return &value;
    if (value.kind != ValueKind::kComputed) return nullptr;
    const Node& node = graph.node(value.producer);
    const OpDef* op = registry.Find(node.op);
    const bool keeps_values = op != nullptr && (op->view || node.op == "cast");
    if (!keeps_values) return nullptr;
    id = node.inputs[0];
  }
  return nullptr;
}

}  // namespace

std::map<std::string, std::vector<InputRange>> IndexRanges(const OpRegistry& registry,
                                                           const Graph& graph) {
  std::map<std::string, std::vector<InputRange>> ranges;
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
    const Node& node = graph.node(n);
    const OpDef* op = registry.Find(node.op);
    if (op == nullptr || !op->index_ranges) continue;
    for (const IndexRange& range : op->index_ranges(graph.TypesOf(n))) {
      const Value* input = InputOf(registry, graph, node.inputs[static_cast<size_t>(range.input)]);
      if (input == nullptr) continue;
      ranges[input->name].push_back({{range.low, range.high, range.ignored}, Describe(node)});
    }
  }
  return ranges;
}

absl::Status CheckRanges(const Dataset& dataset, const Column& column,
                         const std::vector<InputRange>& ranges) {
  for (const InputRange& range : ranges) {
    if (absl::Status s = dataset.CheckRange(column, range.range); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(s.message(), ", by ", range.reader));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
