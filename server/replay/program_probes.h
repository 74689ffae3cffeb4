// The probes of a replay where programs and the model without rewrites have them.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/probe/expression.h"
#include "planner/lowering/probe_points.h"
#include "server/replay/derived_values.h"
#include "server/replay/probe_set.h"

namespace espalier {

struct ProgramProbes {
  // What the ranks read: the probes that the programs have, then derived.sources(). What is lacking
  // is in neither.
  FoundProbes read;
  // Probes of what the programs do not have; Complete adds their answers to a step's.
  DerivedValues derived;
  // Gradients that match a wildcard of `probes`, and could be derived, but are not: "grad(bn)".
  std::set<std::string> left_out;
};

// Finds the probes in programs of `ranks` ranks, and what they do not have in the graph before
// rewrites (GraphBeforeRewrites), which is only made if there may be something. Wildcards match
// both, unless the values that only this graph has need too many bytes of a step: then these are
// lacking. Wildcards of gradients match those of values that only this graph has if nothing else
// matches; otherwise these are in left_out.
// Errors as of FindProbes and DerivedValues::Make.
absl::StatusOr<ProgramProbes> FindProgramProbes(
    const OpRegistry& registry, const ProbePoints& points, size_t ranks,
    const std::vector<ProbeExpression>& probes,
    const std::function<absl::StatusOr<Graph>()>& original_graph);

}  // namespace espalier
