// An index of a graph for pattern matching.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/graph/graph.h"

namespace espalier {

// The graph must outlive the index and must not change.
class GraphIndex {
 public:
  explicit GraphIndex(const Graph& graph);

  const Graph& graph() const { return graph_; }
  const std::vector<NodeId>& NodesOf(const std::string& op) const;
  const std::vector<std::pair<NodeId, int>>& Readers(ValueId value) const {
    return readers_[value];
  }
  bool IsOutput(ValueId value) const { return is_output_[value]; }
  // Whether the value depends on a trainable parameter through floating-point values.
  bool IsTrained(ValueId value) const { return is_trained_[value]; }

 private:
  const Graph& graph_;
  std::map<std::string, std::vector<NodeId>> nodes_;
  std::vector<std::vector<std::pair<NodeId, int>>> readers_;
  std::vector<bool> is_output_;
  std::vector<bool> is_trained_;
};

}  // namespace espalier
