// Applies the rewrites of a plan to the graph that the plan is for.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "ops/graph/graph.h"
#include "ops/rewrite/rule.h"

namespace espalier {

// Returns the built-in rules and those in `substitutions` (rule text; may be empty). Errors as
// ParseRules; InvalidArgument if two rules have the same name.
absl::StatusOr<std::vector<RewriteRule>> RulesWith(const OpRegistry& registry,
                                                   const std::string& substitutions);

// Returns the bound `graph` after `rule` was applied at the operators that `rewrite` names. Returns
// InvalidArgument, with rule and operator, if it does not match there.
absl::StatusOr<Graph> ApplyRewrite(const OpRegistry& registry, const RewriteRule& rule,
                                   const v1::Rewrite& rewrite, const Graph& graph);

// Returns `graph` after all rewrites of `plan`, in order. Errors as ApplyRewrite; InvalidArgument
// for an unknown rule.
absl::StatusOr<Graph> RewrittenGraph(const OpRegistry& registry, const Graph& graph,
                                     const v1::Plan& plan);

}  // namespace espalier
