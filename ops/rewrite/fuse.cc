#include "ops/rewrite/fuse.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "ops/rewrite/match.h"

namespace espalier {
namespace {

// The first matches that share no node.
std::vector<Match> Disjoint(std::vector<Match> matches, size_t nodes) {
  std::vector<Match> chosen;
  std::vector<bool> taken(nodes, false);
  for (Match& match : matches) {
    bool free = true;
    for (NodeId id : match.nodes) free = free && !taken[id];
    if (!free) continue;
    for (NodeId id : match.nodes) taken[id] = true;
    chosen.push_back(std::move(match));
  }
  return chosen;
}

// Index lazily: the graph changes much less often than it is matched.
class Rewriter {
 public:
  Rewriter(const OpRegistry& registry, const Graph& graph) : registry_(registry), graph_(graph) {}

  // Returns the number of applications of `rule`; 0 if it matches nowhere.
  int Pass(const RewriteRule& rule) {
    if (!index_.has_value()) index_.emplace(graph_);
    std::vector<Match> matches =
        Disjoint(FindMatches(registry_, *index_, rule), graph_.nodes().size());
    if (matches.empty()) return 0;
    index_.reset();
    if (ApplyAll(rule, matches, &graph_).ok()) return static_cast<int>(matches.size());
    matches.resize(1);  // one alone always can
    return ApplyAll(rule, matches, &graph_).ok() ? 1 : 0;
  }

  const Graph& graph() const { return graph_; }
  Graph Take() { return std::move(graph_); }

 private:
  const OpRegistry& registry_;
  Graph graph_;
  std::optional<GraphIndex> index_;
};

}  // namespace

absl::StatusOr<Graph> Rewrite(const OpRegistry& registry, const Graph& graph,
                              const std::vector<RewriteRule>& rules,
                              std::map<std::string, int>* applied) {
  Rewriter rewriter(registry, graph);
  // Every useful rule makes the graph smaller or brings it into a form that it then keeps, so this
  // many rounds mean a loop.
  const size_t most = 100 + 10 * graph.nodes().size();
  size_t count = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (const RewriteRule& rule : rules) {
      while (const int places = rewriter.Pass(rule)) {
        changed = true;
        if (applied != nullptr) (*applied)[rule.name] += places;
        count += static_cast<size_t>(places);
        if (count > most) {
          return absl::InvalidArgumentError(absl::StrCat(
              "rewriting graph '", graph.name, "' does not end: ", count, " places and rule '",
              rule.name, "' fits again; expected rules that do not undo each other"));
        }
      }
    }
  }
  return rewriter.Take();
}

namespace {

bool HasOperatorsOf(const OpRegistry& registry, const std::vector<RewriteRule>& rules) {
  for (const RewriteRule& rule : rules) {
    for (const auto* nodes : {&rule.pattern, &rule.replacement}) {
      for (const RuleNode& node : *nodes) {
        if (registry.Find(node.op) == nullptr) return false;
      }
    }
  }
  return true;
}

// FusionRules, all or those without choice. Their text never changes, nor what it means, and
// reading it takes milliseconds: it is read once.
absl::StatusOr<const std::vector<RewriteRule>*> ParsedFusionRules(const OpRegistry& registry,
                                                                  bool with_choices) {
  struct Parsed {
    std::vector<RewriteRule> all, certain;
  };
  static absl::Mutex mutex(absl::kConstInit);
  static const Parsed* parsed = nullptr;
  absl::MutexLock lock(&mutex);
  if (parsed == nullptr || !HasOperatorsOf(registry, parsed->all)) {
    absl::StatusOr<std::vector<RewriteRule>> rules = FusionRules(registry);
    if (!rules.ok()) return rules.status();
    auto* const fresh = new Parsed{*std::move(rules), {}};
    for (const RewriteRule& rule : fresh->all) {
      if (rule.choice.empty()) fresh->certain.push_back(rule);
    }
    parsed = fresh;
  }
  return with_choices ? &parsed->all : &parsed->certain;
}

}  // namespace

absl::StatusOr<Graph> Fuse(const OpRegistry& registry, const Graph& graph,
                           std::map<std::string, int>* applied, bool with_choices) {
  const auto rules = ParsedFusionRules(registry, with_choices);
  if (!rules.ok()) return rules.status();
  return Rewrite(registry, graph, **rules, applied);
}

std::string DescribeFused(const std::map<std::string, int>& applied) {
  std::map<std::string, int> rules;
  for (const auto& [name, count] : applied) rules[name.substr(0, name.find('('))] += count;
  return absl::StrCat("fused: ", absl::StrJoin(rules, ", ", [](std::string* out, const auto& rule) {
                        absl::StrAppend(out, rule.first, " ", rule.second);
                      }));
}

}  // namespace espalier
