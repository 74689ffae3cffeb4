// Reverse-mode differentiation of a graph.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// A graph with the forward nodes (same ids) and the backward nodes.
struct TrainingGraph {
  Graph graph;
  ValueId loss = kNoValue;
  // One for each trainable parameter that the loss depends on.
  struct ParameterGradient {
    ValueId parameter;
    ValueId gradient;
  };
  std::vector<ParameterGradient> gradients;
  NodeId first_backward = kNoNode;  // nodes from here on are backward
  // gradient_of[v]: the forward value that value v is a (partial) gradient of, or kNoValue.
  std::vector<ValueId> gradient_of;
};

// Differentiates output "loss" of a bound graph (see BindAndInfer) with respect to every trainable
// parameter. Backward nodes are "x_grad" operators with `forward` set to the node they
// differentiate, and "add_n" sums where a value is read more than once (`forward` = the value's
// producer, or kNoNode for parameters). The seed gradient is the operator "fill" with value 1.
// Returns InvalidArgument if there is no output "loss", the loss is not a scalar, or a path to a
// parameter runs through an operator that has no gradient, with these attributes or for that input
// (named).
absl::StatusOr<TrainingGraph> Differentiate(const OpRegistry& registry, const Graph& graph);

}  // namespace espalier
