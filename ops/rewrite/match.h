// Finds the places of a graph where a rewrite rule (rule.h) matches, and applies the rule.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/rewrite/graph_index.h"
#include "ops/rewrite/rule.h"

namespace espalier {

// One place where a rule matches, with the attributes and types of the replacement there.
struct Match {
  std::vector<NodeId> nodes;              // by node of the pattern
  std::vector<ValueId> values;            // by value of the rule; kNoValue if absent or new
  std::map<std::string, double> numbers;  // variables
  std::map<std::string, Dims> leading;    // named leading dimensions
  std::vector<Attributes> attributes;     // by node of the replacement
  std::vector<TensorType> types;          // by value of the rule
};

// Returns all matches of `rule` in a bound graph (see BindAndInfer), in the order of the nodes;
// they may overlap. A rule does not match where
//  - a value that the replacement does not compute is read outside of the pattern or is an output
//    of the graph,
//  - an operator of the replacement refuses its operands, or an output would change its type,
//  - a trainable parameter would lose its gradient, or
//  - an input depends on an output, which would make the replacement cyclic.
std::vector<Match> FindMatches(const OpRegistry& registry, const GraphIndex& index,
                               const RewriteRule& rule);
std::vector<Match> FindMatches(const OpRegistry& registry, const Graph& graph,
                               const RewriteRule& rule);

// Returns the graph after `rule` at `match`: bound, with inferred types, nodes in topological
// order. Inputs, parameters, states and outputs keep their names, and so does the node that
// computes the first output. Unread constants are removed. Returns InvalidArgument if FindMatches
// did not return the match for this graph and rule.
absl::StatusOr<Graph> Apply(const OpRegistry& registry, const Graph& graph, const RewriteRule& rule,
                            const Match& match);

// Like Apply, for matches that share no node, all at once and in place. Returns FailedPrecondition
// and leaves the graph unchanged if they cannot all be applied because each reads what another
// computes.
absl::Status ApplyAll(const RewriteRule& rule, const std::vector<Match>& matches, Graph* graph);

}  // namespace espalier
