// A graph's operators in topological order, from which pipeline stages are cut.
#pragma once

#include <vector>

#include "planner/pcg/structure.h"

namespace espalier {

class OperatorSequence {
 public:
  explicit OperatorSequence(const PcgStructure& structure);

  // Forward nodes.
  const std::vector<NodeId>& nodes() const { return nodes_; }
  // Bytes of one micro-batch that cross the cut before operator `i` in the forward pass.
  double Crossing(int i) const { return crossing_[i]; }
  // Bytes of the parameters that are stored with operator `i`.
  double ParameterBytes(int i) const { return parameter_bytes_[i]; }

 private:
  std::vector<NodeId> nodes_;
  std::vector<double> crossing_;
  std::vector<double> parameter_bytes_;
};

}  // namespace espalier
