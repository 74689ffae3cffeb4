// Questions that are graphs: small graphs whose inputs are what probes read, evaluated by the
// coordinator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/replay.pb.h"
#include "ops/graph/graph.h"
#include "ops/probe/expression.h"

namespace espalier {

// Immutable.
class GraphFragments {
 public:
  // The name of an input of a fragment is that of a probe's target: "relu_1", "grad(fc/kernel)".
  // Inputs get the types that are read; a fragment has no parameters and draws no random numbers.
  // Its outputs' names are those of the answers. InvalidArgument that names the fragment and what
  // is accepted; also if two outputs have one name. `registry` must outlive it.
  static absl::StatusOr<GraphFragments> Make(const OpRegistry& registry,
                                             std::vector<Graph> fragments);

  // Probes of tensors, in full: FindProbes is given the replay's, then these.
  const std::vector<ProbeExpression>& sources() const { return sources_; }

  // Takes the rows of a step, of the replay's probes and sources(), in this order. Returns them
  // without those of sources(), and with a row for each output of a fragment: a tensor.
  // InvalidArgument, naming the node, for types that a fragment does not accept; Internal if a
  // source is missing.
  absl::StatusOr<std::vector<v1::HistoryRow>> Complete(std::vector<v1::HistoryRow> rows,
                                                       int64_t step) const;

 private:
  explicit GraphFragments(const OpRegistry* registry) : registry_(registry) {}
  absl::Status Add(Graph fragment);

  const OpRegistry* registry_;
  std::vector<Graph> fragments_;
  std::vector<ProbeExpression> sources_;
};

}  // namespace espalier
