// Where a rewrite rule (rule.h) fits a graph, and the graph after it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/rewrite/graph_index.h"
#include "ops/rewrite/rule.h"

namespace espalier {

// One place where a rule fits, with what the replacement becomes there.
struct Match {
  std::vector<NodeId> nodes;              // by node of the pattern
  std::vector<ValueId> values;            // by value of the rule; kNoValue if absent or new
  std::map<std::string, double> numbers;  // variables
  std::map<std::string, Dims> leading;    // named leading dimensions
  std::vector<Attributes> attributes;     // by node of the replacement
  std::vector<TensorType> types;          // by value of the rule
};

// All places of a bound graph (see BindAndInfer) where `rule` fits, in the order of the nodes; they
// may overlap. It does not fit where
//  - a value that the replacement does not compute is read outside of the pattern or is an output
//    of the graph,
//  - an operator of the replacement refuses what it would read, or an output would change its type,
//  - a trainable parameter would lose a gradient, or
//  - an input depends on an output, so that one node cannot do the work of both.
std::vector<Match> FindMatches(const OpRegistry& registry, const GraphIndex& index,
                               const RewriteRule& rule);
std::vector<Match> FindMatches(const OpRegistry& registry, const Graph& graph,
                               const RewriteRule& rule);

// The graph after `rule` at `match`, which FindMatches gave for this very graph: bound, with
// inferred types, nodes in topological order. Inputs, parameters, states and outputs keep their
// names, and so does the node that computes the first output; constants that nobody reads any more
// are gone. InvalidArgument: the match is not one of this graph and rule.
absl::StatusOr<Graph> Apply(const OpRegistry& registry, const Graph& graph, const RewriteRule& rule,
                            const Match& match);

// Likewise for matches that share no node, all at once and without a copy. FailedPrecondition: each
// can be applied but not all together, because each reads what another computes; the graph is as it
// was.
absl::Status ApplyAll(const RewriteRule& rule, const std::vector<Match>& matches, Graph* graph);

}  // namespace espalier
