// Pages of plans from the planner. The drawing finds layout conversions by the names that MakePlan
// gives them; this test fails if those change.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/report/diff.h"
#include "planner/report/format.h"
#include "planner/report/graph_boxes.h"
#include "planner/report/html.h"
#include "planner/report/testing.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(SearchedPlanTest, PictureShowsEveryOperatorAndEveryByte) {
  for (const Graph& graph : {Mlp(64, 64), Cnn(64), Llama(SmallLlama(6))}) {
    const int64_t batch = graph.name == "mlp" || graph.name == "cnn" ? 64 : 8;
    // Small graphs run fastest on one device; these need communication.
    absl::StatusOr<v1::Plan> plan =
        MakePlan(TestProblem(graph, batch, 4), WithStrategy(v1::SearchOptions::DATA_PARALLEL));
    ASSERT_TRUE(plan.ok()) << plan.status();
    const BoxGraph boxes = MakeBoxGraph(*plan, graph);
    EXPECT_EQ(boxes.unknown, 0);
    EXPECT_EQ(boxes.left_out, 0);
    double planned = 0, drawn = 0;
    for (const v1::ParallelOperator& op : plan->parallel_operators()) planned += op.bytes();
    for (const GraphBox& box : boxes.boxes) {
      drawn += box.parameter_bytes;
      EXPECT_GE(box.view, 0) << box.name;
    }
    for (const GraphEdge& edge : boxes.edges) drawn += edge.bytes;
    EXPECT_GT(planned, 0) << graph.name;
    EXPECT_NEAR(drawn, planned, 1e-6 * planned) << graph.name;

    const std::string page = RenderPlanHtml(*plan, graph, {});
    absl::StatusOr<std::vector<Element>> elements = ParsePage(page);
    ASSERT_TRUE(elements.ok()) << elements.status();
    EXPECT_THAT(elements->front().text, HasSubstr(graph.name));
    EXPECT_THAT(elements->front().text, Not(HasSubstr("not in the plan")));
    EXPECT_TRUE(DiffPlans(*plan, *plan).equal());
  }
}

// Stages, micro-batches, ZeRO and offload appear on the page, in the table and in the diff.
TEST(SearchedPlanTest, StepSettingsAreShownEverywhere) {
  const Graph graph = Llama(SmallLlama(4), 16);
  const PlanProblem problem = TestProblem(graph, 16, 4);
  v1::SearchOptions options;
  options.set_pipeline_stages(2);
  options.set_micro_batches(4);
  options.set_zero_stage(1);
  absl::StatusOr<v1::Plan> staged = MakePlan(problem, options);
  ASSERT_TRUE(staged.ok()) << staged.status();
  const std::vector<StageRow> stages = StageRows(*staged);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].operators.size() + stages[1].operators.size(),
            static_cast<size_t>(staged->operators_size()));
  for (int d : stages[0].devices) {
    EXPECT_EQ(std::count(stages[1].devices.begin(), stages[1].devices.end(), d), 0);
  }
  const auto text = [&](const v1::Plan& plan) {
    absl::StatusOr<std::vector<Element>> page = ParsePage(RenderPlanHtml(plan, graph, {}));
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? page->front().text : "";
  };
  EXPECT_THAT(text(*staged), HasSubstr("pipeline stage"));
  EXPECT_THAT(text(*staged), HasSubstr("4 micro-batches"));
  EXPECT_THAT(text(*staged), HasSubstr("ZeRO stage 1"));
  EXPECT_THAT(RenderPlan(*staged), HasSubstr("Pipeline stages"));

  const v1::SearchOptions single = WithStrategy(v1::SearchOptions::SINGLE_DEVICE);
  absl::StatusOr<v1::Plan> alone = MakePlan(problem, single);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_THAT(text(*alone), HasSubstr("all of it fits as it is"));
  absl::StatusOr<v1::Plan> squeezed =
      MakePlan(TestProblem(graph, 16, 4, alone->prediction().peak_bytes(0) * 7 / 10), single);
  ASSERT_TRUE(squeezed.ok()) << squeezed.status();
  ASSERT_FALSE(squeezed->memory_plans().empty());
  EXPECT_THAT(text(*squeezed), HasSubstr("computed again"));

  std::vector<std::string> names;
  for (const TextPair& pair : DiffPlans(*staged, *squeezed).step) names.push_back(pair.name);
  EXPECT_THAT(names, ::testing::IsSupersetOf({"pipeline stages", "micro-batches", "ZeRO stage"}));
  const FitTotal fit = FitOf(*squeezed);
  EXPECT_GT(fit.swaps + fit.recomputed, 0);
  const std::string told = RenderPlanDiff(DiffPlans(*alone, *squeezed), "alone", "squeezed");
  EXPECT_THAT(told, fit.swaps > 0 ? HasSubstr("swaps") : HasSubstr("computed again"));
  squeezed->set_batch_tiles(8);
  EXPECT_THAT(text(*squeezed), HasSubstr("8 batch tiles"));
  EXPECT_THAT(RenderPlanDiff(DiffPlans(*alone, *squeezed), "alone", "squeezed"),
              HasSubstr("batch tiles"));
}

// DOT graphs: task edges lead forward in time, and every operator and byte is present.
TEST(SearchedPlanTest, DotGraphsAreComplete) {
  const Graph graph = Mlp(64, 64);
  const PlanProblem problem = TestProblem(graph, 64, 4);
  absl::StatusOr<v1::Plan> plan = MakePlan(problem, WithStrategy(v1::SearchOptions::DATA_PARALLEL));
  ASSERT_TRUE(plan.ok()) << plan.status();
  absl::StatusOr<std::shared_ptr<const Timeline>> timeline = SimulatePlan(problem, *plan);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  const std::string tasks = RenderTaskGraph(**timeline);
  int boxes = 0, edges = 0, transfers = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(tasks, '\n'))) {
    int from = 0, to = 0;
    if (std::sscanf(line.c_str(), " t%d -> t%d;", &from, &to) == 2) {
      EXPECT_LT(from, to) << line;
      ++edges;
    } else if (absl::StrContains(line, "[label=")) {
      ++boxes;
      transfers += absl::StrContains(line, "on 0-3") && absl::StrContains(line, "ellipse");
    }
  }
  EXPECT_GT(transfers, 0);
  // Each device's tasks form one chain through its own boxes and shared transfers.
  EXPECT_EQ(boxes + 3 * transfers, static_cast<int>((*timeline)->tasks.size()));
  EXPECT_GE(edges, boxes - 4);

  v1::Plan odd = *plan;
  odd.mutable_operators(0)->set_node("a \"quoted\\ name");
  for (bool costs : {false, true}) {
    const std::string text = RenderComputationGraph(odd, graph, costs);
    EXPECT_THAT(text, HasSubstr("a \\\"quoted\\\\ name"));
    for (int i = 1; i < plan->operators_size(); ++i) {
      EXPECT_THAT(text, HasSubstr(plan->operators(i).node()));
    }
    EXPECT_THAT(text, HasSubstr("fc2.weight.grad"));
    EXPECT_EQ(absl::StrContains(text, " us"), costs);
  }
}

}  // namespace
}  // namespace espalier
