// Pages of plans that the planner makes. The picture finds changes of layout by the names that
// MakePlan gives them; if those change, this test says so.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/report/boxes.h"
#include "planner/report/diff.h"
#include "planner/report/html.h"
#include "planner/report/testing.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MadePlanTest, PictureShowsEveryOperatorAndEveryByte) {
  for (const Graph& graph : {Mlp(64, 64), Cnn(64), Llama(SmallLlama(6))}) {
    const int64_t batch = graph.name == "mlp" || graph.name == "cnn" ? 64 : 8;
    // Small graphs are fastest on one device; here something is to move.
    absl::StatusOr<proto::Plan> plan =
        MakePlan(TestProblem(graph, batch, 4), WithStrategy(proto::SearchOptions::DATA_PARALLEL));
    ASSERT_TRUE(plan.ok()) << plan.status();
    const BoxGraph boxes = MakeBoxGraph(*plan, graph);
    EXPECT_EQ(boxes.unknown, 0);
    EXPECT_EQ(boxes.left_out, 0);
    double planned = 0, drawn = 0;
    for (const proto::ParallelOperator& op : plan->parallel_operators()) planned += op.bytes();
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

}  // namespace
}  // namespace espalier
