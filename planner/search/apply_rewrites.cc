#include "planner/search/apply_rewrites.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/rewrite/fuse.h"
#include "ops/rewrite/match.h"

namespace espalier {

absl::StatusOr<std::vector<RewriteRule>> RulesWith(const OpRegistry& registry,
                                                   const std::string& substitutions) {
  absl::StatusOr<std::vector<RewriteRule>> rules = SearchRules(registry);
  if (!rules.ok() || substitutions.empty()) return rules;
  absl::StatusOr<std::vector<RewriteRule>> more = ParseRules(registry, substitutions);
  if (!more.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("substitutions: ", more.status().message()));
  }
  std::set<std::string> names;
  for (const RewriteRule& rule : *rules) names.insert(rule.name);
  for (RewriteRule& rule : *more) {
    if (!names.insert(rule.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "substitutions: rule '", rule.name, "' has the name of one of Espalier's; give another"));
    }
    rules->push_back(std::move(rule));
  }
  return rules;
}

absl::StatusOr<Graph> ApplyRewrite(const OpRegistry& registry, const RewriteRule& rule,
                                   const v1::Rewrite& rewrite, const Graph& graph) {
  const auto fits = [&](const Match& match) {
    if (graph.node(match.nodes.back()).name != rewrite.at()) return false;
    if (static_cast<int>(match.nodes.size()) != rewrite.others_size() + 1) return false;
    for (int i = 0; i < rewrite.others_size(); ++i) {
      if (graph.node(match.nodes[i]).name != rewrite.others(i)) return false;
    }
    return true;
  };
  for (const Match& match : FindMatches(registry, graph, rule)) {
    if (!fits(match)) continue;
    Graph result = graph;
    if (absl::Status s = ApplyAll(rule, {match}, &result); !s.ok()) return s;
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("plan: rewrite '", rewrite.rule(), "' at operator '", rewrite.at(),
                   "' does not fit there; leave it out, or make the plan anew"));
}

absl::StatusOr<Graph> RewrittenGraph(const OpRegistry& registry, const Graph& graph,
                                     const v1::Plan& plan) {
  absl::StatusOr<std::vector<RewriteRule>> rules = RulesWith(registry, plan.substitutions());
  if (!rules.ok()) return rules.status();
  std::map<std::string, const RewriteRule*> by_name;
  for (const RewriteRule& rule : *rules) by_name[rule.name] = &rule;
  Graph result = graph;
  for (const v1::Rewrite& rewrite : plan.rewrites()) {
    const auto rule = by_name.find(rewrite.rule());
    if (rule == by_name.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: rewrite '", rewrite.rule(), "' at operator '", rewrite.at(),
                       "' is no rule of Espalier and none of the plan's substitutions"));
    }
    absl::StatusOr<Graph> next = ApplyRewrite(registry, *rule->second, rewrite, result);
    if (!next.ok()) return next.status();
    result = *std::move(next);
  }
  return result;
}

}  // namespace espalier
