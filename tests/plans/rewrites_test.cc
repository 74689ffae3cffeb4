// A plan with graph rewrites trains as the submitted graph does.
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/operators/register_all.h"
#include "ops/rewrite/fuse.h"
#include "ops/rewrite/match.h"
#include "planner/cost/analytic_cost.h"
#include "planner/search/apply_rewrites.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"

namespace espalier {
namespace {

constexpr int kSteps = 10;
constexpr int kDevices = 2;
constexpr double kTolerance = 1e-4;  // relative

class RewritesTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    auto job = GetParam() ? SmallLlama(registry_, 2, 16, 8) : DigitsCnn(registry_);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
    absl::StatusOr<Graph> fused = Fuse(registry_, job_.graph);
    ASSERT_TRUE(fused.ok()) << fused.status();
    job_.graph = *std::move(fused);
  }

  PlanProblem Problem(const Graph& graph, int devices) {
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &graph;
    problem.batch_size = job_.batch;
    problem.machine = TestMachine(devices);
    problem.optimizer = AdamW(3e-3);
    problem.cost = &cost_;
    return problem;
  }

  absl::StatusOr<InProcessRun> Train(const v1::Plan& plan) {
    TrainingRunOptions options;
    options.steps = kSteps;
    options.batch_size = job_.batch;
    options.lowering.optimizer = AdamW(3e-3);
    options.lowering.seed = 11;
    options.lowering.columns = job_.columns;
    return TrainInProcess(registry_, job_.graph, plan, job_.dataset, options);
  }

  // Makes the plan of a search that chose these rewrites.
  absl::StatusOr<v1::Plan> PlanWith(const std::vector<v1::Rewrite>& rewrites) {
    v1::Plan wanted;
    for (const v1::Rewrite& rewrite : rewrites) *wanted.add_rewrites() = rewrite;
    absl::StatusOr<Graph> graph = RewrittenGraph(registry_, job_.graph, wanted);
    if (!graph.ok()) return graph.status();
    absl::StatusOr<v1::Plan> plan = MakePlan(Problem(*graph, kDevices), {});
    if (!plan.ok()) return plan.status();
    plan->set_graph_fingerprint(GraphFingerprint(job_.graph));
    *plan->mutable_rewrites() = wanted.rewrites();
    v1::SearchOptions imported;
    imported.set_strategy(v1::SearchOptions::IMPORTED);
    *imported.mutable_imported() = *plan;
    return MakePlan(Problem(job_.graph, kDevices), imported);
  }

  OpRegistry registry_;
  SmallTrainingJob job_;
  AnalyticCost cost_;
};

// Every matching rule at its first match, and all matches together.
TEST_P(RewritesTest, RewrittenGraphsTrainAlike) {
  v1::SearchOptions single;
  single.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  const absl::StatusOr<v1::Plan> whole = MakePlan(Problem(job_.graph, 1), single);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const absl::StatusOr<InProcessRun> reference = Train(*whole);
  ASSERT_TRUE(reference.ok()) << reference.status();

  const absl::StatusOr<std::vector<RewriteRule>> rules = RulesWith(registry_, "");
  ASSERT_TRUE(rules.ok()) << rules.status();
  std::vector<std::vector<v1::Rewrite>> all = {{}};
  Graph graph = job_.graph;
  for (const RewriteRule& rule : *rules) {
    const auto rewrite = [&](const Graph& of, const Match& match) {
      v1::Rewrite made;
      made.set_rule(rule.name);
      made.set_at(of.node(match.nodes.back()).name);
      for (size_t i = 0; i + 1 < match.nodes.size(); ++i) {
        made.add_others(of.node(match.nodes[i]).name);
      }
      return made;
    };
    const std::vector<Match> first = FindMatches(registry_, job_.graph, rule);
    if (!first.empty()) all.push_back({rewrite(job_.graph, first[0])});
    const std::vector<Match> next = FindMatches(registry_, graph, rule);
    if (next.empty()) continue;
    all[0].push_back(rewrite(graph, next[0]));
    absl::StatusOr<Graph> after = Apply(registry_, graph, rule, next[0]);
    ASSERT_TRUE(after.ok()) << after.status();
    graph = *std::move(after);
  }
  EXPECT_GT(all[0].size(), 1u);
  for (const std::vector<v1::Rewrite>& rewrites : all) {
    std::string what;
    for (const v1::Rewrite& r : rewrites) absl::StrAppend(&what, r.rule(), " at ", r.at(), "; ");
    const absl::StatusOr<v1::Plan> plan = PlanWith(rewrites);
    ASSERT_TRUE(plan.ok()) << what << plan.status();
    EXPECT_EQ(plan->rewrites_size(), static_cast<int>(rewrites.size()));
    // Workers run the rewritten graph.
    std::set<std::string> operators;
    for (const v1::OperatorPlan& op : plan->operators()) operators.insert(op.node());
    const absl::StatusOr<Graph> made = RewrittenGraph(registry_, job_.graph, *plan);
    ASSERT_TRUE(made.ok()) << made.status();
    for (const Node& node : made->nodes()) EXPECT_EQ(operators.count(node.name), 1u) << node.name;
    EXPECT_TRUE(SimulatePlan(Problem(job_.graph, kDevices), *plan).ok());
    const absl::StatusOr<InProcessRun> run = Train(*plan);
    ASSERT_TRUE(run.ok()) << what << run.status();
    const double worst = LargestRelativeDifference(*reference, *run);
    std::printf("%.1e  %s\n", worst, what.c_str());
    EXPECT_LT(worst, kTolerance) << what;
  }
}

TEST_P(RewritesTest, SearchWithRewritesIsNeverWorseAndItsPlanImports) {
  PlanProblem problem = Problem(job_.graph, 4);
  v1::SearchOptions options;
  const absl::StatusOr<v1::Plan> without = MakePlan(problem, options);
  ASSERT_TRUE(without.ok()) << without.status();
  options.set_rewrite_budget(30);
  const absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(plan->search().graphs(), 0);
  EXPECT_LE(plan->prediction().step_seconds(), without->prediction().step_seconds());
  absl::StatusOr<std::string> json = ExportPlan(*plan);
  ASSERT_TRUE(json.ok()) << json.status();
  absl::StatusOr<v1::Plan> read = ImportPlan(*json);
  ASSERT_TRUE(read.ok()) << read.status();
  v1::SearchOptions imported;
  imported.set_strategy(v1::SearchOptions::IMPORTED);
  *imported.mutable_imported() = *read;
  const absl::StatusOr<v1::Plan> again = MakePlan(problem, imported);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->rewrites_size(), plan->rewrites_size());
  EXPECT_NEAR(again->prediction().step_seconds(), plan->prediction().step_seconds(),
              1e-9 * plan->prediction().step_seconds());
}

// An obstacle to the rewritten graph alone must not prevent the other's plan.
TEST_P(RewritesTest, InitialPlanSurvivesSearchWithRewrites) {
  PlanProblem problem = Problem(job_.graph, 2);
  v1::SearchOptions options;
  options.set_budget(500);
  const absl::StatusOr<v1::Plan> first = MakePlan(problem, options);
  ASSERT_TRUE(first.ok()) << first.status();
  *options.mutable_imported() = *first;
  options.set_rewrite_budget(30);
  const absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->prediction().step_seconds(), first->prediction().step_seconds());
}

TEST_P(RewritesTest, SearchContinuesFromARewrittenPlan) {
  const Graph& graph = job_.graph;
  PlanProblem problem = Problem(graph, 2);
  v1::SearchOptions options;
  options.set_budget(500);
  options.set_rewrite_budget(30);
  const absl::StatusOr<v1::Plan> first = MakePlan(problem, options);
  ASSERT_TRUE(first.ok()) << first.status();
  *options.mutable_imported() = *first;
  if (first->rewrites_size() > 0) {
    EXPECT_THAT(std::string(MakePlan(problem, options).status().message()),
                ::testing::HasSubstr("search.rewrite_budget is set together with search.imported"));
  }
  options.clear_rewrite_budget();
  const absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->rewrites_size(), first->rewrites_size());
  EXPECT_LE(plan->prediction().step_seconds(), 1.0001 * first->prediction().step_seconds());
  LoweringOptions lowering;
  lowering.optimizer = AdamW(3e-3);
  lowering.columns = job_.columns;
  EXPECT_TRUE(LowerPlan(registry_, graph, *plan, lowering).ok());
}

TEST_P(RewritesTest, OptionsOutOfRangeAreNamed) {
  const auto error = [&](const v1::SearchOptions& options) {
    return std::string(MakePlan(Problem(job_.graph, 2), options).status().message());
  };
  v1::SearchOptions options;
  options.set_rewrite_budget(-1);
  EXPECT_THAT(error(options), ::testing::HasSubstr("search.rewrite_budget is -1"));
  options.set_rewrite_budget(10);
  options.set_rewrite_alpha(0.5);
  EXPECT_THAT(error(options), ::testing::HasSubstr("search.rewrite_alpha is 0.5"));
  options.set_rewrite_alpha(0);
  options.set_substitutions("rule broken\n  y = nothing(x)\n  =>\n  y = relu(x)\n");
  EXPECT_THAT(error(options), ::testing::AllOf(::testing::HasSubstr("substitutions: line 2"),
                                               ::testing::HasSubstr("nothing")));
  options.set_rewrite_budget(0);
  EXPECT_THAT(error(options), ::testing::HasSubstr("give a budget"));
}

INSTANTIATE_TEST_SUITE_P(Models, RewritesTest, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Llama" : "DigitsCnn"; });

}  // namespace
}  // namespace espalier
