#include "planner/search/best_first.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/rewrite/match.h"
#include "planner/parallel.h"
#include "planner/pcg/placement.h"
#include "planner/search/elimination.h"

namespace espalier {
namespace {

constexpr size_t kMostLayouts = 16;  // at the input or output of a segment
constexpr int kMostNodes = 1000;
constexpr int kMostConfigs = 16;  // per operator
constexpr size_t kAtOnce = 16;    // graphs evaluated in parallel

// A tried graph.
struct Tried {
  Graph graph;
  std::vector<RewriteStep> steps;
  std::vector<double> costs;
};

class Coster {
 public:
  Coster(const PlanProblem& problem, const JointOptions& options, const SegmentGraph& segment)
      : problem_(problem), options_(options), segment_(segment), machine_(problem.machine) {
    const int devices = std::min(options.space.num_devices, kJointGroup);
    machine_.devices.resize(devices);
    space_ = options.space;
    space_.num_devices = devices;
    optimizer_ = problem.optimizer;
    if (optimizer_.name().empty()) optimizer_.set_name("sgd");  // only planned, never run
  }

  // Returns Variant::costs by `model`. Unless null, `layouts` gets the number of input and output
  // layouts.
  absl::StatusOr<std::vector<double>> Costs(const Graph& graph, CostModel& model,
                                            std::pair<int, int>* layouts) const {
    absl::StatusOr<PcgStructure> structure =
        BuildStructure(*problem_.registry, graph, /*forward_only=*/false);
    if (!structure.ok()) return structure.status();
    ConfigTable table(*structure);
    CostTables costs(*structure, table, machine_, model, optimizer_);
    const SearchSpace space(*structure, space_);
    Placement data(structure->nodes.size(), nullptr);
    for (NodeId n : structure->LiveNodes()) {
      data[n] = table.Get(n, DataParallel(structure->nodes[n].rule, space_.num_devices));
    }
    std::map<std::string, NodeId> by_name;
    for (NodeId n : structure->LiveNodes()) by_name[graph.node(n).name] = n;
    SegmentBoundaries around;
    around.most_configs = kMostConfigs;
    for (const std::vector<std::string>* side : {&segment_.in, &segment_.out}) {
      if (side->empty()) continue;
      SegmentBoundaries::Boundary boundary;
      for (const std::string& name : *side) {
        const auto node = by_name.find(name);
        if (node == by_name.end()) continue;
        std::vector<const ConfigEntry*> choices;
        for (const NodeConfig& config : space.OnFirstDevices(node->second)) {
          if (choices.size() < kMostLayouts) choices.push_back(table.Get(node->second, config));
        }
        boundary.nodes.push_back(node->second);
        boundary.choices.push_back(std::move(choices));
      }
      if (boundary.nodes.empty()) {
        return absl::InternalError(
            absl::StrCat("nothing of '", graph.name, "' reads what enters or leaves it"));
      }
      const int count = static_cast<int>(boundary.choices[0].size());
      if (layouts != nullptr) (side == &segment_.in ? layouts->first : layouts->second) = count;
      around.boundaries.push_back(std::move(boundary));
    }
    for (const std::string& name : segment_.rest) {
      if (const auto node = by_name.find(name); node != by_name.end()) {
        around.nodes.push_back(node->second);
      }
    }
    return EliminationCosts(space, table, costs, data, around);
  }

 private:
  const PlanProblem& problem_;
  const JointOptions& options_;
  const SegmentGraph& segment_;
  Machine machine_;
  SpaceOptions space_;
  v1::Optimizer optimizer_;
};

class Search {
 public:
  Search(const PlanProblem& problem, const std::vector<RewriteRule>& rules,
         const JointOptions& options, const SegmentGraph& segment)
      : problem_(problem),
        rules_(rules),
        options_(options),
        segment_(segment),
        coster_(problem, options, segment) {
    fixed_.insert(segment.in.begin(), segment.in.end());
    fixed_.insert(segment.out.begin(), segment.out.end());
    fixed_.insert(segment.rest.begin(), segment.rest.end());
  }

  absl::StatusOr<Variants> Run() {
    std::pair<int, int> layouts = {1, 1};
    absl::StatusOr<std::vector<double>> costs =
        coster_.Costs(segment_.graph, *problem_.cost, &layouts);
    if (!costs.ok()) return costs.status();
    best_ = *costs;
    seen_.insert(CanonicalForm(segment_.graph));
    tried_.push_back({segment_.graph, {}, *std::move(costs)});
    // Cheapest first; of equal ones the first found.
    std::set<std::pair<double, size_t>> queue = {{1, 0}};
    while (!queue.empty() && static_cast<int>(tried_.size()) <= options_.budget) {
      if (Stopped()) break;
      const size_t next = queue.begin()->second;
      queue.erase(queue.begin());
      if (Ratio(tried_[next].costs) > options_.alpha) continue;
      const size_t before = tried_.size();
      if (absl::Status s = Expand(next); !s.ok()) return s;
      for (size_t i = before; i < tried_.size(); ++i) {
        const double ratio = Ratio(tried_[i].costs);
        if (ratio <= options_.alpha) queue.emplace(ratio, i);
      }
    }
    return Best(layouts);
  }

 private:
  // The smallest excess over the best cost, over all pairs of layouts.
  double Ratio(const std::vector<double>& costs) const {
    double least = costs[0] / best_[0];
    for (size_t i = 0; i < costs.size(); ++i) {
      if (best_[i] <= 0) return 1;
      least = std::min(least, costs[i] / best_[i]);
    }
    return least;
  }

  // Every rule at every place.
  absl::Status Expand(size_t from) {
    std::vector<Tried> made;
    const GraphIndex index(tried_[from].graph);
    for (int r = 0; r < static_cast<int>(rules_.size()); ++r) {
      for (const Match& match : FindMatches(*problem_.registry, index, rules_[r])) {
        if (static_cast<int>(tried_.size() + made.size()) > options_.budget) break;
        if (std::any_of(match.nodes.begin(), match.nodes.end(), [&](NodeId n) {
              return fixed_.count(tried_[from].graph.node(n).name) > 0;
            })) {
          continue;
        }
        Graph graph = tried_[from].graph;
        if (!ApplyAll(rules_[r], {match}, &graph).ok()) continue;
        if (static_cast<int>(graph.nodes().size()) > kMostNodes) continue;
        if (!seen_.insert(CanonicalForm(graph)).second) continue;
        std::vector<RewriteStep> steps = tried_[from].steps;
        steps.push_back({r, match.nodes});
        made.push_back({std::move(graph), std::move(steps), {}});
      }
    }
    for (size_t begin = 0; begin < made.size() && !Stopped(); begin += kAtOnce) {
      const int count = static_cast<int>(std::min(kAtOnce, made.size() - begin));
      if (absl::Status s = Cost(&made[begin], count); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // Computes the costs of `count` graphs and marks them as tried.
  absl::Status Cost(Tried* made, int count) {
    std::vector<absl::StatusOr<std::vector<double>>> costs(count, std::vector<double>());
    ForEachApart(problem_, count, [&](int i, const OwnProblem& own) {
      costs[i] = coster_.Costs(made[i].graph, *own->cost, nullptr);
    });
    for (int i = 0; i < count; ++i) {
      if (!costs[i].ok()) return costs[i].status();
      made[i].costs = *std::move(costs[i]);
      for (size_t k = 0; k < best_.size(); ++k) best_[k] = std::min(best_[k], made[i].costs[k]);
      tried_.push_back(std::move(made[i]));
    }
    return absl::OkStatus();
  }

  bool Stopped() const { return options_.stop && options_.stop(); }

  // Returns the original graph and those that are best for some layouts; of equal ones those with
  // fewer steps.
  Variants Best(const std::pair<int, int>& layouts) const {
    Variants result{.entries = layouts.first,
                    .exits = layouts.second,
                    .graphs = static_cast<int64_t>(tried_.size())};
    std::set<size_t> chosen = {0};
    for (size_t k = 0; k < best_.size(); ++k) {
      size_t least = 0;
      for (size_t i = 1; i < tried_.size(); ++i) {
        const auto rank = [&](size_t t) {
          return std::pair(tried_[t].costs[k], tried_[t].steps.size());
        };
        if (rank(i) < rank(least)) least = i;
      }
      chosen.insert(least);
    }
    for (size_t i : chosen) result.variants.push_back({tried_[i].steps, tried_[i].costs});
    return result;
  }

  const PlanProblem& problem_;
  const std::vector<RewriteRule>& rules_;
  const JointOptions& options_;
  const SegmentGraph& segment_;
  const Coster coster_;
  std::set<std::string> fixed_;  // nodes
  std::set<std::string> seen_;   // forms
  std::vector<Tried> tried_;
  std::vector<double> best_;  // lowest costs so far
};

}  // namespace

absl::StatusOr<Variants> SearchSegment(const PlanProblem& problem,
                                       const std::vector<RewriteRule>& rules,
                                       const JointOptions& options, const SegmentGraph& segment) {
  return Search(problem, rules, options, segment).Run();
}

absl::StatusOr<Graph> ApplyStep(const OpRegistry& registry, const std::vector<RewriteRule>& rules,
                                const RewriteStep& step, const Graph& graph) {
  for (const Match& match : FindMatches(registry, graph, rules[step.rule])) {
    if (match.nodes != step.nodes) continue;
    Graph result = graph;
    if (absl::Status s = ApplyAll(rules[step.rule], {match}, &result); !s.ok()) return s;
    return result;
  }
  return absl::InvalidArgumentError(absl::StrCat("rule '", rules[step.rule].name,
                                                 "' does not fit graph '", graph.name,
                                                 "' where it is to be applied"));
}

}  // namespace espalier
