// Values that operators of a plan read past.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "ops/graph/graph.h"

namespace espalier {

// Rewrites may let an operator compute both a value and what was computed of it, as
// residual_layer_norm does of the sum and its norm. In the programs, the gradient of such a value
// is only what comes back through its other readers. Returns the computed values of `planned` (the
// graph after rewrites) of which `original` (GraphBeforeRewrites) computes, without another value
// that both have in between, one that `planned` does not.
std::set<std::string> BypassedValues(const Graph& original, const Graph& planned);

// Returns what a value is a sum of, among others, and nothing else reads: it has the gradient of
// the sum. Nullopt if the value is no such sum.
std::optional<std::string> SoleAddend(const Graph& graph, const std::string& value);

}  // namespace espalier
