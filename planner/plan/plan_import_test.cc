// Tests plans that are given: imported ones, and those that a search starts from.
#include <algorithm>
#include <string>

#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "planner/plan/plan_fixture.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

using google::protobuf::util::MessageDifferencer;

TEST(ImportTest, ExportedPlanRoundTrips) {
  const Graph graph = Llama(SmallLlama());
  v1::SearchOptions options;
  options.set_budget(500);
  const v1::Plan plan = Made(TestProblem(graph, 8, 4), options);
  absl::StatusOr<std::string> json = ExportPlan(plan);
  ASSERT_TRUE(json.ok());
  absl::StatusOr<v1::Plan> back = ImportPlan(*json);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(MessageDifferencer::Equals(plan, *back));

  v1::SearchOptions import = WithStrategy(v1::SearchOptions::IMPORTED);
  *import.mutable_imported() = *back;
  const v1::Plan again = Made(TestProblem(graph, 8, 4), import);
  EXPECT_EQ(again.prediction().step_seconds(), plan.prediction().step_seconds());
  ASSERT_EQ(again.operators_size(), plan.operators_size());
  for (int i = 0; i < plan.operators_size(); ++i) {
    EXPECT_TRUE(MessageDifferencer::Equals(again.operators(i), plan.operators(i)));
  }
}

// A search that starts from a plan and keeps its pinned operators.
TEST(SearchFromTest, PinnedOperatorsStayAndPlanIsNotSlower) {
  const Graph graph = Llama(SmallLlama());
  const PlanProblem problem = TestProblem(graph, 8, 4);
  const v1::Plan data = Made(problem, WithStrategy(v1::SearchOptions::DATA_PARALLEL));
  v1::SearchOptions options;
  options.set_budget(2000);
  options.set_seed(3);
  *options.mutable_imported() = data;
  const v1::Plan free = Made(problem, options);
  EXPECT_LE(free.prediction().step_seconds(), data.prediction().step_seconds());

  // Pinned to the last device alone, where no search would put them.
  int count = 0;
  for (v1::OperatorPlan& op : *options.mutable_imported()->mutable_operators()) {
    if (op.op() != "linear" || ++count % 3 != 0) continue;
    op.clear_degrees();
    op.clear_devices();
    op.add_devices(3);
    op.set_pinned(true);
  }
  ASSERT_GT(count, 3);
  for (double alpha : {0.0, 0.05}) {
    options.set_alpha(alpha);
    const v1::Plan plan = Made(problem, options);
    int pinned = 0, moved = 0;
    for (int i = 0; i < plan.operators_size(); ++i) {
      const v1::OperatorPlan& op = plan.operators(i);
      const v1::OperatorPlan& before = options.imported().operators(i);
      ASSERT_EQ(op.node(), before.node());
      EXPECT_EQ(op.pinned(), before.pinned());
      if (!op.pinned()) {
        moved += !std::equal(op.devices().begin(), op.devices().end(), before.devices().begin(),
                             before.devices().end());
        continue;
      }
      ++pinned;
      EXPECT_TRUE(op.degrees().empty()) << op.node();
      ASSERT_EQ(op.devices_size(), 1) << op.node();
      EXPECT_EQ(op.devices(0), 3) << op.node();
    }
    EXPECT_EQ(pinned, count / 3);
    EXPECT_GT(moved, 0);
    v1::SearchOptions as_it_is = WithStrategy(v1::SearchOptions::IMPORTED);
    *as_it_is.mutable_imported() = options.imported();
    EXPECT_LT(plan.prediction().step_seconds(),
              Made(problem, as_it_is).prediction().step_seconds());
    EXPECT_NE(MakePlan(TestProblem(graph, 8, 2), options).status(), absl::OkStatus());
  }
}

// The front ignores pins: it is reported, but the plan does not come from it.
TEST(SearchFromTest, PinnedOperatorsStayWithParetoFront) {
  const Graph graph = Mlp(1024, 512, 512, 16);
  const PlanProblem problem = TestProblem(graph, 1024, 4);
  v1::SearchOptions options;
  options.set_memory_search(true);
  *options.mutable_imported() = Made(problem, WithStrategy(v1::SearchOptions::DATA_PARALLEL));
  for (v1::OperatorPlan& op : *options.mutable_imported()->mutable_operators()) {
    if (op.op() != "linear") continue;
    op.clear_degrees();
    op.clear_devices();
    op.add_devices(3);
    op.set_pinned(true);
  }
  const v1::Plan plan = Made(problem, options);
  EXPECT_GE(plan.pareto_front_size(), 2);
  int pinned = 0;
  for (const v1::OperatorPlan& op : plan.operators()) {
    if (op.op() != "linear") continue;
    ++pinned;
    EXPECT_TRUE(op.pinned()) << op.node();
    ASSERT_EQ(op.devices_size(), 1) << op.node();
    EXPECT_EQ(op.devices(0), 3) << op.node();
  }
  EXPECT_EQ(pinned, 2);
}

TEST(SearchFromTest, ABudgetOfZeroIsRefused) {
  const Graph graph = Mlp();
  v1::SearchOptions options;
  options.set_budget(0);
  const absl::Status status = MakePlan(TestProblem(graph, 8, 2), options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(MessageOf(status).find("search.budget is 0; expected 1 to"), std::string::npos);
}

TEST(ImportTest, HostileJsonIsRefused) {
  const std::string deep = std::string(200000, '[');
  std::string nested = "{\"operators\":";
  for (int i = 0; i < 5000; ++i) nested += "{\"a\":";
  for (const std::string& json :
       {std::string(), std::string("null"), std::string("[]"), std::string("{"), std::string("{}"),
        std::string("{\"format_version\": 2}"), std::string("{\"format_version\": \"one\"}"),
        std::string("{\"format_version\": 1, \"unknown\": 3}"),
        std::string("{\"format_version\": 1, \"operators\": [{\"op\": \"linear\"}]}"),
        std::string("{\"format_version\": 1, \"operators\": {\"0\": 1}}"),
        std::string("{\"format_version\": 1, \"batch_size\": 1e400}"),
        std::string("{\"format_version\": 1, \"devices\": [{\"threads\": 99999999999}]}"),
        std::string("{\"format_version\": 1, \"graph_fingerprint\": \"\xff\xfe\"}"), deep,
        nested}) {
    absl::StatusOr<v1::Plan> plan = ImportPlan(json);
    ASSERT_FALSE(plan.ok()) << json.substr(0, 100);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ImportTest, ErrorsNameTheLine) {
  const absl::Status status =
      ImportPlan("{\n  \"format_version\": 1,\n  \"batch_sise\": 8\n}\n").status();
  EXPECT_NE(MessageOf(status).find("batch_sise"), std::string::npos) << status;
  EXPECT_NE(MessageOf(status).find("line 3"), std::string::npos) << status;
  const absl::Status syntax =
      ImportPlan("{\n  \"format_version\": 1,\n  \"batch_size\": ,\n}\n").status();
  EXPECT_NE(MessageOf(syntax).find("line 3"), std::string::npos) << syntax;
}

class ImportedPlanTest : public testing::Test {
 protected:
  absl::Status Import(const Graph& graph, const v1::Plan& plan, int devices = 2) {
    v1::SearchOptions options = WithStrategy(v1::SearchOptions::IMPORTED);
    *options.mutable_imported() = plan;
    return MakePlan(TestProblem(graph, 8, devices), options).status();
  }
  void ExpectRefused(const v1::Plan& plan, const std::string& words) {
    const absl::Status status = Import(graph_, plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(MessageOf(status).find(words), std::string::npos) << status;
  }
  Graph graph_ = Mlp();
  v1::Plan plan_ = Made(TestProblem(graph_, 8, 2), WithStrategy(v1::SearchOptions::DATA_PARALLEL));
};

TEST_F(ImportedPlanTest, ValidPlanIsAccepted) {
  EXPECT_EQ(Import(graph_, plan_), absl::OkStatus());
}

TEST_F(ImportedPlanTest, OfAnotherGraphIsRefusedWithBothFingerprints) {
  const absl::Status status = Import(Cnn(), plan_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(status).find(plan_.graph_fingerprint()), std::string::npos);
  EXPECT_NE(MessageOf(status).find(GraphFingerprint(Cnn())), std::string::npos);
  EXPECT_NE(MessageOf(status).find("'fc1'"), std::string::npos) << status;
}

TEST_F(ImportedPlanTest, OfAnotherBatchSizeIsRefused) {
  EXPECT_NE(MessageOf(Import(Mlp(16), plan_)).find("batch size"), std::string::npos);
}

TEST_F(ImportedPlanTest, IllegalConfigurationsAreNamedWithLegalOnes) {
  v1::Plan plan = plan_;
  (*plan.mutable_operators(0)->mutable_degrees())["sample"] = 3;
  ExpectRefused(plan, "legal: 1, 2");
  plan = plan_;
  (*plan.mutable_operators(0)->mutable_degrees())["sample"] = 0;
  ExpectRefused(plan, "cannot have degree 0");
  plan = plan_;
  (*plan.mutable_operators(0)->mutable_degrees())["colour"] = 2;
  ExpectRefused(plan, "has no axis 'colour'");
  plan = plan_;
  plan.mutable_operators(0)->set_devices(1, 7);
  ExpectRefused(plan, "names device 7; legal: 0 to 1");
  plan = plan_;
  plan.mutable_operators(0)->set_devices(1, 0);
  ExpectRefused(plan, "device 0 twice");
  plan = plan_;
  plan.mutable_operators(0)->add_devices(1);
  ExpectRefused(plan, "3 devices for 2 parts");
  plan = plan_;
  plan.mutable_operators(0)->set_node("fc9");
  ExpectRefused(plan, "'fc9' is not in the graph");
  plan = plan_;
  plan.mutable_operators()->RemoveLast();
  ExpectRefused(plan, "of the graph is missing");
  plan = plan_;
  *plan.add_operators() = plan.operators(0);
  ExpectRefused(plan, "given twice");
}

TEST_F(ImportedPlanTest, ForTooManyDevicesIsRefused) {
  EXPECT_EQ(Import(graph_, plan_, 1).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
