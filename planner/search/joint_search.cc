#include "planner/search/joint_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/rewrite/match.h"
#include "planner/search/apply_rewrites.h"
#include "planner/search/best_first.h"
#include "planner/search/segments.h"
#include "planner/simulator/task.h"

namespace espalier {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// By node: whether some rule matches nodes on both sides of a cut in front of it.
std::vector<bool> Crossed(const OpRegistry& registry, const std::vector<RewriteRule>& rules,
                          const Graph& graph) {
  std::vector<bool> crossed(graph.nodes().size(), false);
  const GraphIndex index(graph);
  for (const RewriteRule& rule : rules) {
    for (const Match& match : FindMatches(registry, index, rule)) {
      const auto [first, last] = std::minmax_element(match.nodes.begin(), match.nodes.end());
      for (NodeId n = *first + 1; n <= *last; ++n) crossed[n] = true;
    }
  }
  return crossed;
}

// Returns the variant of each segment that minimizes the total, by dynamic programming over
// boundary layouts. `sum` gets the total; `first_only`: use only the first variants.
std::vector<int> Choose(const std::vector<const Variants*>& sequence, bool first_only,
                        double* sum) {
  struct Best {
    double cost = kNever;
    int before = 0, variant = 0;
  };
  std::vector<std::vector<Best>> best = {{{0, 0, 0}}};
  for (const Variants* segment : sequence) {
    std::vector<Best> next(segment->exits);
    for (int in = 0; in < segment->entries; ++in) {
      for (int out = 0; out < segment->exits; ++out) {
        const int variants = first_only ? 1 : static_cast<int>(segment->variants.size());
        for (int v = 0; v < variants; ++v) {
          const double cost =
              best.back()[in].cost + segment->variants[v].costs[in * segment->exits + out];
          if (cost < next[out].cost) next[out] = {cost, in, v};
        }
      }
    }
    best.push_back(std::move(next));
  }
  int at = 0;
  for (int i = 0; i < static_cast<int>(best.back().size()); ++i) {
    if (best.back()[i].cost < best.back()[at].cost) at = i;
  }
  *sum = best.back()[at].cost;
  std::vector<int> chosen(sequence.size());
  for (size_t s = sequence.size(); s-- > 0;) {
    chosen[s] = best[s + 1][at].variant;
    at = best[s + 1][at].before;
  }
  return chosen;
}

// Maps names of a segment's graph to the whole graph; renames new nodes whose name is taken.
using Names = std::map<std::string, std::string>;

v1::Rewrite ToRewrite(const RewriteRule& rule, const Graph& graph, const Names& names,
                      const std::vector<NodeId>& nodes) {
  const auto name_of = [&](NodeId node) {
    const std::string& name = graph.node(node).name;
    const auto found = names.find(name);
    return found == names.end() ? name : found->second;
  };
  v1::Rewrite rewrite;
  rewrite.set_rule(rule.name);
  rewrite.set_at(name_of(nodes.back()));
  for (size_t i = 0; i + 1 < nodes.size(); ++i) rewrite.add_others(name_of(nodes[i]));
  return rewrite;
}

// Names of nodes that only `after` has, in its order.
std::vector<std::string> NewNames(const Graph& before, const Graph& after) {
  std::set<std::string> old;
  for (const Node& node : before.nodes()) old.insert(node.name);
  std::vector<std::string> names;
  for (const Node& node : after.nodes()) {
    if (old.count(node.name) == 0) names.push_back(node.name);
  }
  return names;
}

}  // namespace

absl::StatusOr<JointResult> FindRewrites(const PlanProblem& problem,
                                         const std::vector<RewriteRule>& rules,
                                         const JointOptions& options) {
  const OpRegistry& registry = *problem.registry;
  const Graph& graph = *problem.graph;
  const std::vector<Segment> segments =
      CutIntoSegments(graph, Crossed(registry, rules, graph), options.least_nodes);
  JointResult result;
  result.segments = static_cast<int>(segments.size());
  std::map<std::string, Variants> found;  // by canonical form
  std::vector<const Variants*> sequence;
  std::vector<SegmentGraph> graphs;
  for (const Segment& segment : segments) {
    absl::StatusOr<SegmentGraph> made =
        MakeSegmentGraph(registry, graph, segment, problem.batch_size);
    if (!made.ok()) return made.status();
    const std::string form = CanonicalForm(made->graph);
    auto it = found.find(form);
    if (it == found.end()) {
      absl::StatusOr<Variants> variants = SearchSegment(problem, rules, options, *made);
      if (!variants.ok()) return variants.status();
      result.graphs += variants->graphs;
      it = found.emplace(form, *std::move(variants)).first;
    }
    graphs.push_back(*std::move(made));
    sequence.push_back(&it->second);
    if (options.progress) {
      options.progress(static_cast<double>(sequence.size()) / static_cast<double>(segments.size()));
    }
  }
  result.different = static_cast<int>(found.size());
  double before = 0, after = 0;
  Choose(sequence, /*first_only=*/true, &before);
  const std::vector<int> chosen = Choose(sequence, /*first_only=*/false, &after);
  result.before = before / ToPicoseconds(1);
  result.after = after / ToPicoseconds(1);
  result.graph = graph;
  for (size_t s = 0; s < segments.size(); ++s) {
    Graph piece = std::move(graphs[s].graph);
    Names names;
    for (const RewriteStep& step : sequence[s]->variants[chosen[s]].steps) {
      const RewriteRule& rule = rules[step.rule];
      const v1::Rewrite rewrite = ToRewrite(rule, piece, names, step.nodes);
      absl::StatusOr<Graph> whole = ApplyRewrite(registry, rule, rewrite, result.graph);
      if (!whole.ok()) return whole.status();
      absl::StatusOr<Graph> next = ApplyStep(registry, rules, step, piece);
      if (!next.ok()) return next.status();
      // The rule makes the same nodes of both, in one order.
      const std::vector<std::string> in_piece = NewNames(piece, *next);
      const std::vector<std::string> in_whole = NewNames(result.graph, *whole);
      if (in_piece.size() != in_whole.size()) {
        return absl::InternalError(absl::StrCat("rule '", rule.name, "' makes ", in_piece.size(),
                                                " nodes of a segment and ", in_whole.size(),
                                                " of the graph, at '", rewrite.at(), "'"));
      }
      for (size_t i = 0; i < in_piece.size(); ++i) names[in_piece[i]] = in_whole[i];
      piece = *std::move(next);
      result.graph = *std::move(whole);
      result.rewrites.push_back(rewrite);
    }
  }
  return result;
}

}  // namespace espalier
