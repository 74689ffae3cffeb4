// MakePlan (planner.h). Plans both the original graph and the one that the joint search
// (planner/search/joint_search.h) finds, and takes the faster plan.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/cost/analytic_cost.h"
#include "planner/parallel.h"
#include "planner/plan/at_zero_stage.h"
#include "planner/plan/plan_pareto.h"
#include "planner/proto/plan_proto.h"
#include "planner/search/apply_rewrites.h"
#include "planner/search/joint_search.h"

namespace espalier {
namespace {

constexpr int kMostGraphs = 1'000'000;
constexpr double kMostAlpha = 100;

absl::Status CheckRewriteOptions(const v1::SearchOptions& options) {
  if (options.rewrite_budget() < 0 || options.rewrite_budget() > kMostGraphs) {
    return absl::InvalidArgumentError(
        absl::StrCat("search.rewrite_budget is ", options.rewrite_budget(),
                     "; expected 0 (the graph stays as it is) to ", kMostGraphs, " graphs"));
  }
  const double alpha = options.rewrite_alpha();
  if (alpha != 0 && !(alpha >= 1 && alpha <= kMostAlpha)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "search.rewrite_alpha is ", alpha, "; expected 1 to ", kMostAlpha, ", or 0 for 1.05"));
  }
  if (options.rewrite_budget() > 0 && options.strategy() != v1::SearchOptions::SEARCH) {
    return absl::InvalidArgumentError(
        "search.rewrite_budget is set together with a strategy that searches nothing; leave one "
        "out");
  }
  if (options.rewrite_budget() > 0 && options.imported().rewrites_size() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("search.rewrite_budget is set together with search.imported, which has ",
                     options.imported().rewrites_size(), " rewrites already; leave one out"));
  }
  if (options.memory_search() &&
      (options.strategy() != v1::SearchOptions::SEARCH || options.pipeline_stages() > 1)) {
    return absl::InvalidArgumentError(
        "search.memory_search is set together with a strategy that searches nothing, or with a "
        "number of stages; leave one out");
  }
  if (!options.substitutions().empty() && options.rewrite_budget() == 0) {
    return absl::InvalidArgumentError(
        "search.substitutions are given, but search.rewrite_budget is 0, so that no rule is "
        "tried; give a budget");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Plan> PlanGraph(const PlanProblem& problem, const v1::SearchOptions& options) {
  return options.memory_search() ? MakeParetoPlan(problem, options)
                                 : MakePlanOfGraph(problem, options);
}

// An imported plan with rewrites: used as it is, or as a starting point.
absl::StatusOr<v1::Plan> PlanRewritten(const PlanProblem& problem,
                                       const v1::SearchOptions& options) {
  const v1::Plan& imported = options.imported();
  if (absl::Status s = CheckPlanIsFor(*problem.graph, imported); !s.ok()) return s;
  const absl::StatusOr<Graph> graph = RewrittenGraph(*problem.registry, *problem.graph, imported);
  if (!graph.ok()) return graph.status();
  PlanProblem rewritten = problem;
  rewritten.graph = &*graph;
  v1::SearchOptions of_graph = options;
  of_graph.mutable_imported()->clear_rewrites();
  of_graph.mutable_imported()->set_graph_fingerprint(GraphFingerprint(*graph));
  absl::StatusOr<v1::Plan> plan = PlanGraph(rewritten, of_graph);
  if (!plan.ok()) return plan;
  plan->set_graph_fingerprint(imported.graph_fingerprint());
  *plan->mutable_rewrites() = imported.rewrites();
  plan->set_substitutions(imported.substitutions());
  return plan;
}

absl::StatusOr<JointResult> SearchRewrites(const PlanProblem& problem,
                                           const v1::SearchOptions& options) {
  absl::StatusOr<std::vector<RewriteRule>> rules =
      RulesWith(*problem.registry, options.substitutions());
  if (!rules.ok()) return rules.status();
  JointOptions joint;
  joint.budget = options.rewrite_budget();
  if (options.rewrite_alpha() > 0) joint.alpha = options.rewrite_alpha();
  joint.space.num_devices = static_cast<int>(problem.machine.devices.size());
  if (options.max_devices() > 0) {
    joint.space.num_devices = std::min(joint.space.num_devices, options.max_devices());
  }
  joint.space.parameter_parallel = !options.disable_parameter_parallel();
  joint.space.attribute_parallel = !options.disable_attribute_parallel();
  joint.stop = problem.stop;
  AnalyticCost analytic;
  PlanProblem with_cost = problem;
  if (with_cost.cost == nullptr) with_cost.cost = &analytic;
  return FindRewrites(with_cost, *rules, joint);
}

absl::StatusOr<v1::Plan> PlanWithRewrites(const PlanProblem& problem,
                                          const v1::SearchOptions& options) {
  const double begin = problem.seconds ? problem.seconds() : 0;
  absl::StatusOr<v1::Plan> plain = absl::UnknownError("");
  absl::StatusOr<JointResult> found = absl::UnknownError("");
  ForEachApart(problem, 2, [&](int i, const OwnProblem& own) {
    // Only the first reports progress.
    if (i == 0) plain = PlanGraph(problem, options);
    if (i == 1) found = SearchRewrites(*own, options);
  });
  if (!plain.ok() && !absl::IsResourceExhausted(plain.status())) return plain;
  if (!found.ok()) return found.status();
  const auto finish = [&](absl::StatusOr<v1::Plan> plan) {
    if (!plan.ok()) return plan;
    plan->mutable_search()->set_graphs(found->graphs);
    if (problem.seconds) plan->mutable_search()->set_seconds(problem.seconds() - begin);
    return plan;
  };
  if (found->rewrites.empty()) return finish(std::move(plain));
  PlanProblem rewritten = problem;
  rewritten.graph = &found->graph;
  rewritten.progress = nullptr;  // progress would start over
  absl::StatusOr<v1::Plan> plan = PlanGraph(rewritten, options);
  // With fewer operators such a pipeline may not exist, and a starting plan refers to the original
  // graph: then the original graph's plan stands.
  if (!plan.ok() && !plain.ok()) {
    return absl::IsResourceExhausted(plan.status()) ? finish(std::move(plain)) : plan;
  }
  if (!plan.ok() ||
      (plain.ok() && plain->prediction().step_seconds() <= plan->prediction().step_seconds())) {
    return finish(std::move(plain));
  }
  plan->set_graph_fingerprint(GraphFingerprint(*problem.graph));
  for (const v1::Rewrite& rewrite : found->rewrites) *plan->add_rewrites() = rewrite;
  plan->set_substitutions(options.substitutions());
  if (plain.ok()) {
    v1::Alternative* alternative = plan->add_alternatives();
    alternative->set_name("without rewrites");
    *alternative->mutable_prediction() = plain->prediction();
  }
  return finish(std::move(plan));
}

}  // namespace

absl::StatusOr<v1::Plan> MakePlan(const PlanProblem& problem, const v1::SearchOptions& options) {
  if (absl::Status s = CheckRewriteOptions(options); !s.ok()) return s;
  const bool imported = options.strategy() == v1::SearchOptions::IMPORTED ||
                        (options.strategy() == v1::SearchOptions::SEARCH && options.has_imported());
  if (problem.registry != nullptr && problem.graph != nullptr) {
    if (imported && options.imported().rewrites_size() > 0) return PlanRewritten(problem, options);
    if (options.rewrite_budget() > 0) return PlanWithRewrites(problem, options);
  }
  return PlanGraph(problem, options);
}

}  // namespace espalier
