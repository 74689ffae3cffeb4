// Fusion: operators that always gain from being one; and the rules that a search decides on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/rewrite/rule.h"

namespace espalier {

// The rules that come with Espalier (fusion_rules.cc), most specific first.
absl::StatusOr<std::vector<RewriteRule>> FusionRules(const OpRegistry& registry);

// Those that are a choice (RewriteRule::choice), of the rules above and of search_rules.cc.
absl::StatusOr<std::vector<RewriteRule>> SearchRules(const OpRegistry& registry);

// Applies `rules` to a bound graph, each as long as it fits and all of them until none does. The
// result depends on nothing but the arguments; it is for the batch size that the graph is bound
// to. `applied`, if not null, counts by name of the rule. InvalidArgument: the rules undo each
// other (the last one is named).
absl::StatusOr<Graph> Rewrite(const OpRegistry& registry, const Graph& graph,
                              const std::vector<RewriteRule>& rules,
                              std::map<std::string, int>* applied = nullptr);

// Rewrite with FusionRules; those that are a choice (RewriteRule::choice) only `with_choices`.
absl::StatusOr<Graph> Fuse(const OpRegistry& registry, const Graph& graph,
                           std::map<std::string, int>* applied = nullptr,
                           bool with_choices = false);

}  // namespace espalier
