#include "planner/pcg/operator_sequence.h"

#include <algorithm>

namespace espalier {

OperatorSequence::OperatorSequence(const PcgStructure& structure)
    : nodes_(structure.LiveNodes()),
      crossing_(nodes_.size() + 1, 0),
      parameter_bytes_(nodes_.size(), 0) {
  const Graph& graph = structure.graph();
  std::vector<int> order(structure.nodes.size(), -1);
  for (size_t i = 0; i < nodes_.size(); ++i) order[nodes_[i]] = static_cast<int>(i);
  for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
    const Value& value = graph.value(v);
    const double bytes = static_cast<double>(value.type.bytes());
    if (value.kind == ValueKind::kParameter && structure.base[v].present()) {
      parameter_bytes_[order[structure.base[v].node]] += bytes;
    }
    if (value.producer == kNoNode || value.producer >= structure.training.first_backward ||
        order[value.producer] < 0) {
      continue;
    }
    const int from = order[value.producer];
    int to = from;
    for (int s : structure.slots_of_value[v]) {
      const size_t p = structure.slots[s].position;
      if (p < structure.positions.size() && structure.positions[p].role == Position::kForward) {
        to = std::max(to, order[structure.positions[p].node]);
      }
    }
    for (int i = from + 1; i <= to; ++i) crossing_[i] += bytes;
  }
}

}  // namespace espalier
