// Operator fusion by rewrite rules: rules that always pay off, and rules that a search chooses.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/rewrite/rule.h"

namespace espalier {

// The built-in fusion rules (fusion_rules.cc), most specific first.
absl::StatusOr<std::vector<RewriteRule>> FusionRules(const OpRegistry& registry);

// The rules for the planner's search: those of the above with RewriteRule::choice, and those of
// search_rules.cc.
absl::StatusOr<std::vector<RewriteRule>> SearchRules(const OpRegistry& registry);

// Applies `rules` to a bound graph to a fixed point: each rule while it matches, and all of them
// until none does. Deterministic. The result is valid for the batch size that the graph is bound
// to. Unless null, `applied` counts applications by rule name. Returns InvalidArgument if the rules
// undo each other (names the last one).
absl::StatusOr<Graph> Rewrite(const OpRegistry& registry, const Graph& graph,
                              const std::vector<RewriteRule>& rules,
                              std::map<std::string, int>* applied = nullptr);

// Rewrite with FusionRules; includes rules with RewriteRule::choice only if `with_choices`.
absl::StatusOr<Graph> Fuse(const OpRegistry& registry, const Graph& graph,
                           std::map<std::string, int>* applied = nullptr,
                           bool with_choices = false);

// "fused: attention 4, gelu_erf 4", for what Fuse counted; variants of a rule are counted together.
std::string DescribeFused(const std::map<std::string, int>& applied);

}  // namespace espalier
