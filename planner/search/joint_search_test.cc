#include "planner/search/joint_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "ops/graph/builder.h"
#include "planner/cost/analytic_cost.h"
#include "planner/search/apply_rewrites.h"
#include "planner/testing/graphs.h"
#include "planner/testing/small_problems.h"

namespace espalier {
namespace {

std::vector<RewriteRule> Rules() {
  absl::StatusOr<std::vector<RewriteRule>> rules = RulesWith(TestRegistry(), "");
  EXPECT_TRUE(rules.ok()) << rules.status();
  return rules.ok() ? *rules : std::vector<RewriteRule>{};
}

// Residual blocks of two linear layers with fused bias and activation.
Graph Blocks(int layers, int64_t batch, int64_t width, int64_t inner,
             const std::string& first_sum = "layer0.sum") {
  GraphBuilder b(TestRegistry(), "blocks");
  ValueId x = b.Input("x", DType::kF32, {-1, width});
  for (int i = 0; i < layers; ++i) {
    const std::string name = absl::StrCat("layer", i);
    const auto parameter = [&](const std::string& which, Dims dims) {
      return b.Parameter(name + which, DType::kF32, dims, {});
    };
    const ValueId up =
        b.Op("linear", {x, parameter(".up.weight", {inner, width}), parameter(".up.bias", {inner})},
             {{"activation", std::string("relu")}}, name + ".up");
    const ValueId down = b.Op(
        "linear", {up, parameter(".down.weight", {width, inner}), parameter(".down.bias", {width})},
        {}, name + ".down");
    x = b.Op("add", {x, down}, {}, i == 0 ? first_sum : name + ".sum");
  }
  b.Output("loss", b.Op("mean_squared_error", {x, b.Input("labels", DType::kF32, {-1, width})}, {},
                        "loss"));
  absl::StatusOr<Graph> graph = b.Build();
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(BindAndInfer(TestRegistry(), batch, &*graph), absl::OkStatus());
  return *graph;
}

class JointTest : public ::testing::Test {
 protected:
  PlanProblem Problem(const Graph& graph, int64_t batch, int devices) {
    PlanProblem problem;
    problem.registry = &TestRegistry();
    problem.graph = &graph;
    problem.batch_size = batch;
    problem.machine = TestMachine(devices);
    problem.optimizer = TestOptimizer();
    problem.cost = &cost_;
    return problem;
  }

  JointResult Find(const PlanProblem& problem, JointOptions options) {
    options.space.num_devices = static_cast<int>(problem.machine.devices.size());
    absl::StatusOr<JointResult> result = FindRewrites(problem, Rules(), options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : JointResult();
  }

  AnalyticCost cost_;
};

std::string Text(const std::vector<v1::Rewrite>& rewrites) {
  std::string text;
  for (const v1::Rewrite& r : rewrites) absl::StrAppend(&text, r.rule(), "@", r.at(), "\n");
  return text;
}

// Few samples and large matrices: parameters must be split, and the second layer of each block
// along its reduction, which fused bias and activation forbid.
TEST_F(JointTest, UnfusesLayersToEnableBetterSplit) {
  const Graph graph = Blocks(6, 64, 256, 2048);
  const PlanProblem problem = Problem(graph, 64, 4);
  const JointResult result = Find(problem, {.budget = 60, .least_nodes = 3});
  EXPECT_LT(result.after, 0.9 * result.before) << Text(result.rewrites);
  EXPECT_GT(result.segments, 2);
  // The middle segments are equal.
  EXPECT_LE(result.different, 3);
  EXPECT_THAT(Text(result.rewrites), ::testing::HasSubstr("bias_apart@layer3.down"));
}

// Segments are searched alone and do not see each other's names.
TEST_F(JointTest, RewrittenNamesStayUnique) {
  const Graph graph = Blocks(6, 64, 256, 2048);
  const JointOptions options{.budget = 60, .least_nodes = 3};
  const JointResult result = Find(Problem(graph, 64, 4), options);
  std::set<std::string> old, given;
  for (const Node& node : graph.nodes()) old.insert(node.name);
  for (const Node& node : result.graph.nodes()) {
    if (old.count(node.name) == 0 && node.name.rfind("layer3.", 0) == 0) given.insert(node.name);
  }
  ASSERT_FALSE(given.empty()) << Text(result.rewrites);
  for (const std::string& name : given) {
    const Graph clashing = Blocks(6, 64, 256, 2048, name);
    const JointResult other = Find(Problem(clashing, 64, 4), options);
    EXPECT_EQ(other.rewrites.size(), result.rewrites.size()) << name << "\n"
                                                             << Text(other.rewrites);
    EXPECT_DOUBLE_EQ(other.after, result.after) << name;
    std::set<std::string> names;
    for (const Node& node : other.graph.nodes()) EXPECT_TRUE(names.insert(node.name).second);
  }
}

// A segment with its boundary nodes costs what it costs in the whole graph.
TEST_F(JointTest, SegmentCostsAddUpToGraphCost) {
  const Graph graph = Blocks(4, 64, 128, 256);
  const PlanProblem problem = Problem(graph, 64, 4);
  const JointResult cut = Find(problem, {.budget = 1, .least_nodes = 3});
  const JointResult whole = Find(problem, {.budget = 1, .least_nodes = 1000});
  EXPECT_GT(cut.segments, 2);
  EXPECT_EQ(whole.segments, 1);
  EXPECT_GE(cut.before, 0.9999 * whole.before);
  EXPECT_LE(cut.before, 1.03 * whole.before);
}

TEST_F(JointTest, IsIndependentOfThreads) {
  const Graph graph = Blocks(3, 64, 256, 1024);
  PlanProblem problem = Problem(graph, 64, 2);
  JointOptions options{.budget = 40, .least_nodes = 3};
  const std::string alone = Text(Find(problem, options).rewrites);
  EXPECT_NE(alone, "");
  problem.for_each = [](int count, const std::function<void(int)>& work) {
    std::vector<std::thread> threads;
    for (int i = count; i-- > 0;) threads.emplace_back([&work, i] { work(i); });
    for (std::thread& thread : threads) thread.join();
  };
  EXPECT_EQ(Text(Find(problem, options).rewrites), alone);
}

TEST_F(JointTest, StopsWithBestSoFar) {
  const Graph graph = Blocks(6, 4, 512, 2048);
  const PlanProblem problem = Problem(graph, 4, 4);
  int64_t asked = 0;
  const JointResult stopped =
      Find(problem, {.budget = 60, .least_nodes = 3, .stop = [&] { return ++asked > 2; }});
  const JointResult all = Find(problem, {.budget = 60, .least_nodes = 3});
  EXPECT_GT(stopped.graphs, 0);
  EXPECT_LT(stopped.graphs, all.graphs);
  EXPECT_LE(stopped.after, stopped.before);
  EXPECT_LE(all.after, stopped.after);
}

// A larger alpha prunes less.
TEST_F(JointTest, AlphaOfOneOnlyAcceptsImprovements) {
  const Graph graph = Blocks(2, 4, 512, 2048);
  const PlanProblem problem = Problem(graph, 4, 4);
  const JointResult narrow = Find(problem, {.budget = 1000, .alpha = 1.0, .least_nodes = 1000});
  const JointResult wide = Find(problem, {.budget = 1000, .alpha = 1.3, .least_nodes = 1000});
  EXPECT_LT(narrow.graphs, wide.graphs);
  EXPECT_LE(wide.after, narrow.after);
}

// On chains, blocks and branches of all kinds; a plan's rewrites reproduce its graph.
TEST_F(JointTest, RandomGraphsGetNoSlowerAndRewritesReplay) {
  int rewritten = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const SmallProblem small = RandomProblem(seed, 2 + static_cast<int>(seed % 3), 6);
    PlanProblem problem = small.Problem();
    problem.cost = &cost_;
    const JointResult result = Find(problem, {.budget = 30, .least_nodes = 3});
    ASSERT_FALSE(HasFailure());
    EXPECT_LE(result.after, result.before);
    if (result.rewrites.empty()) continue;
    ++rewritten;
    v1::Plan plan;
    for (const v1::Rewrite& rewrite : result.rewrites) *plan.add_rewrites() = rewrite;
    const absl::StatusOr<Graph> again = RewrittenGraph(TestRegistry(), small.graph, plan);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(GraphFingerprint(*again), GraphFingerprint(result.graph));
  }
  EXPECT_GE(rewritten, 3);
}

TEST_F(JointTest, InapplicableRewriteIsNamed) {
  const Graph graph = Blocks(1, 4, 64, 64);
  v1::Plan plan;
  plan.add_rewrites()->set_rule("bias_apart");
  plan.mutable_rewrites(0)->set_at("layer0.sum");
  EXPECT_THAT(
      std::string(RewrittenGraph(TestRegistry(), graph, plan).status().message()),
      ::testing::AllOf(::testing::HasSubstr("'bias_apart'"), ::testing::HasSubstr("'layer0.sum'")));
  plan.mutable_rewrites(0)->set_rule("nonsense");
  EXPECT_THAT(std::string(RewrittenGraph(TestRegistry(), graph, plan).status().message()),
              ::testing::HasSubstr("no rule of Espalier"));
}

}  // namespace
}  // namespace espalier
