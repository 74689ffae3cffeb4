// The graph that a plan's rewrites make of the one that it is for.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/rewrite/rule.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// Espalier's rules and those of the plan (`substitutions`, text of rules; may be empty).
// InvalidArgument as ParseRules, or if two have one name.
absl::StatusOr<std::vector<RewriteRule>> RulesWith(const OpRegistry& registry,
                                                   const std::string& substitutions);

// `graph` (bound) after `rule` at the operators that `rewrite` names. InvalidArgument, with rule
// and operator, if it does not fit there.
absl::StatusOr<Graph> ApplyRewrite(const OpRegistry& registry, const RewriteRule& rule,
                                   const v1::Rewrite& rewrite, const Graph& graph);

// `graph` after all rewrites of `plan`, in order. Errors as above; InvalidArgument for a rule that
// nobody knows.
absl::StatusOr<Graph> RewrittenGraph(const OpRegistry& registry, const Graph& graph,
                                     const v1::Plan& plan);

}  // namespace espalier
