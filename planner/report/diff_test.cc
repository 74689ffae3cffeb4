#include "planner/report/diff.h"

#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/report/testing.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(DiffTest, PlanEqualsItself) {
  const v1::Plan plan = LayeredPlan(4, 4);
  const PlanDiff diff = DiffPlans(plan, plan);
  EXPECT_TRUE(diff.equal());
  EXPECT_EQ(RenderPlanDiff(diff, "a.json", "b.json"), "The plans a.json and b.json are equal.\n");
  EXPECT_TRUE(DiffPlans({}, {}).equal());
}

TEST(DiffTest, SearchTimeIsIgnored) {
  const v1::Plan a = LayeredPlan(1, 2);
  v1::Plan b = a;
  b.mutable_search()->set_seconds(99);
  EXPECT_TRUE(DiffPlans(a, b).equal());
}

TEST(DiffTest, NanEqualsNan) {
  v1::Plan plan = LayeredPlan(1, 2);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  plan.mutable_prediction()->set_step_seconds(nan);
  plan.mutable_operators(0)->set_predicted_seconds(nan);
  plan.mutable_parallel_operators(0)->set_bytes(nan);
  plan.mutable_alternatives(0)->mutable_prediction()->set_step_seconds(nan);
  plan.mutable_search()->set_alpha(nan);
  EXPECT_TRUE(DiffPlans(plan, plan).equal());
}

// Every kind of difference makes plans unequal.
TEST(DiffTest, EachDifferenceCounts) {
  const v1::Plan a = LayeredPlan(2, 4);
  const std::vector<std::function<void(v1::Plan*)>> edits = {
      [](v1::Plan* p) { p->set_graph_fingerprint("other"); },
      [](v1::Plan* p) { p->set_format_version(2); },
      [](v1::Plan* p) { p->set_batch_size(16); },
      [](v1::Plan* p) { p->set_zero_stage(2); },
      [](v1::Plan* p) { p->mutable_devices(3)->set_model("other"); },
      [](v1::Plan* p) { p->mutable_devices(3)->set_kind(v1::Device::CPU); },
      [](v1::Plan* p) { p->mutable_devices(3)->set_memory_bytes(5 << 20); },
      [](v1::Plan* p) { p->mutable_devices(3)->set_matmul_flops(1e12); },
      [](v1::Plan* p) { p->mutable_devices(3)->set_memory_bandwidth(1e12); },
      [](v1::Plan* p) { p->mutable_devices()->RemoveLast(); },
      [](v1::Plan* p) { p->mutable_operators()->RemoveLast(); },
      [](v1::Plan* p) { p->mutable_operators(2)->set_op("gelu"); },
      [](v1::Plan* p) { p->mutable_operators(2)->set_devices(0, 3); },
      [](v1::Plan* p) { p->mutable_operators(2)->mutable_devices()->SwapElements(0, 1); },
      [](v1::Plan* p) { (*p->mutable_operators(2)->mutable_degrees())["out"] = 2; },
      [](v1::Plan* p) { p->mutable_operators(2)->set_predicted_seconds(1); },
      [](v1::Plan* p) { p->mutable_parallel_operators(0)->set_bytes(1); },
      [](v1::Plan* p) { p->mutable_parallel_operators(0)->set_dimension(1); },
      [](v1::Plan* p) { p->mutable_parallel_operators()->RemoveLast(); },
      [](v1::Plan* p) { p->mutable_prediction()->set_step_seconds(1); },
      [](v1::Plan* p) { p->mutable_prediction()->set_compute_seconds(1); },
      [](v1::Plan* p) { p->mutable_prediction()->set_communication_seconds(1); },
      [](v1::Plan* p) { p->mutable_prediction()->set_bytes_moved(1); },
      [](v1::Plan* p) { p->mutable_prediction()->set_peak_bytes(2, 1); },
      [](v1::Plan* p) { p->mutable_alternatives()->RemoveLast(); },
      [](v1::Plan* p) { p->mutable_alternatives(0)->set_refused("no"); },
      [](v1::Plan* p) { p->mutable_search()->set_seed(8); },
      [](v1::Plan* p) { p->mutable_search()->set_budget(8); },
      [](v1::Plan* p) { p->mutable_search()->set_alpha(8); },
  };
  for (size_t i = 0; i < edits.size(); ++i) {
    v1::Plan b = a;
    edits[i](&b);
    const PlanDiff diff = DiffPlans(a, b), back = DiffPlans(b, a);
    EXPECT_FALSE(diff.equal()) << i;
    EXPECT_FALSE(back.equal()) << i;
    EXPECT_THAT(RenderPlanDiff(diff, "x", "y"), HasSubstr("Plan x against plan y\n")) << i;
  }
}

TEST(DiffTest, SeedsAreComparedToTheLastDigit) {
  v1::Plan a, b;
  a.mutable_search()->set_seed(18446744073709551615u);
  b.mutable_search()->set_seed(18446744073709551614u);
  EXPECT_THAT(RenderPlanDiff(DiffPlans(a, b), "a", "b"),
              HasSubstr("18446744073709551615  18446744073709551614"));
}

TEST(DiffTest, OneChangedSplitIsOneLine) {
  const v1::Plan a = LayeredPlan(8, 4);
  v1::Plan b = a;
  v1::OperatorPlan* op = b.mutable_operators(6);
  ASSERT_EQ(op->node(), "layers.2.act");
  op->clear_degrees();
  op->mutable_devices()->Truncate(1);
  op->set_predicted_seconds(8e-3);
  const PlanDiff diff = DiffPlans(a, b);
  ASSERT_EQ(diff.operators.size(), 1u);
  EXPECT_EQ(diff.operators[0], (OperatorChange{OperatorChange::kChanged,
                                               "layers.2.act",
                                               {"relu", "sample×4", {0, 1, 2, 3}, 3e-3},
                                               {"relu", "whole", {0}, 8e-3}}));
  EXPECT_EQ(diff.retimed, 0);
  EXPECT_EQ(RenderPlanDiff(diff, "old", "new"),
            "Plan old against plan new\n"
            "\n"
            "Operators that differ: 1 (old has 18, new has 18)\n"
            "  node          operator  old              new         time\n"
            "  layers.2.act  relu      sample×4 on 0-3  whole on 0  3.00 ms -> 8.00 ms\n"
            "\n"
            "Predicted, per step\n"
            "                 old        new        change\n"
            "  step           100.00 ms  100.00 ms  the same\n"
            "  compute        80.00 ms   80.00 ms   the same\n"
            "  communication  20.00 ms   20.00 ms   the same\n"
            "  moved          3.0 MiB    3.0 MiB    the same\n"
            "  memory         512.0 MiB  512.0 MiB  the same\n"
            "  memory of all  2.0 GiB    2.0 GiB    the same\n");
}

TEST(DiffTest, RepeatedLayersShareALine) {
  const v1::Plan a = LayeredPlan(8, 4);
  v1::Plan b = a;
  for (int l = 0; l < 8; ++l) {
    if (l != 5) b.mutable_operators(2 + 2 * l)->clear_degrees();
  }
  const PlanDiff diff = DiffPlans(a, b);
  EXPECT_EQ(diff.operators.size(), 7u);
  EXPECT_THAT(RenderPlanDiff(diff, "a", "b"),
              HasSubstr("\n  layers.0-4,6-7.act  relu      sample×4 on 0-3  whole on 0-3  21.00 ms "
                        "-> 21.00 ms\n"));
}

TEST(DiffTest, OtherDevices) {
  const v1::Plan a = LayeredPlan(2, 4), b = LayeredPlan(2, 8);
  v1::Plan c = b;
  for (int d = 0; d < 8; ++d) c.mutable_devices(d)->set_model("NVIDIA B200");
  PlanDiff diff = DiffPlans(a, b);
  ASSERT_EQ(diff.devices.size(), 4u);
  EXPECT_EQ(diff.devices[0], (DeviceChange{4, "", "CUDA NVIDIA H200, 1.0 GiB"}));
  EXPECT_EQ(diff.operators.size(), 6u);
  const std::string text = RenderPlanDiff(diff, "four", "eight");
  EXPECT_THAT(text, HasSubstr("  4-7     -     CUDA NVIDIA H200, 1.0 GiB\n"));
  EXPECT_THAT(text, HasSubstr("layers.0-1.fc   linear     out×2 on 0-1     out×4 on 0-3"));
  EXPECT_THAT(text, HasSubstr("+2.0 GiB (+100.0 %)"));
  diff = DiffPlans(b, c);
  EXPECT_THAT(RenderPlanDiff(diff, "b", "c"),
              HasSubstr("  0-7     CUDA NVIDIA H200, 1.0 GiB  CUDA NVIDIA B200, 1.0 GiB\n"));
}

TEST(DiffTest, OperatorsOfOnePlanOnly) {
  const PlanDiff diff = DiffPlans(LayeredPlan(2, 2), LayeredPlan(4, 2));
  ASSERT_EQ(diff.operators.size(), 4u);
  EXPECT_EQ(diff.operators[0].kind, OperatorChange::kOnlyInB);
  const std::string text = RenderPlanDiff(diff, "a", "b");
  EXPECT_THAT(text, HasSubstr("layers.2-3.fc   linear    -"));
  EXPECT_THAT(RenderPlanDiff(DiffPlans(LayeredPlan(4, 2), LayeredPlan(2, 2)), "a", "b"),
              HasSubstr("layers.2-3.fc   linear    out×1 on 0       -"));
}

TEST(DiffTest, DuplicateNamesAreMatchedInOrder) {
  v1::Plan a = LayeredPlan(1, 2);
  for (v1::OperatorPlan& op : *a.mutable_operators()) op.set_node("same");
  EXPECT_TRUE(DiffPlans(a, a).equal());
  v1::Plan b = a;
  b.mutable_operators()->RemoveLast();
  EXPECT_EQ(DiffPlans(a, b).operators.size(), 1u);
}

TEST(DiffTest, ParallelOperatorsByKind) {
  const v1::Plan a = LayeredPlan(3, 4);
  v1::Plan b = a;
  b.mutable_parallel_operators()->DeleteSubrange(0, 1);  // a combine of 1 MiB
  b.mutable_parallel_operators(0)->set_bytes(5 << 20);   // a reduce of 2 MiB
  v1::ParallelOperator* added = b.add_parallel_operators();
  added->set_kind(v1::ParallelOperator::ALL_TO_ALL);
  added->set_degree(2);
  added->set_bytes(3 << 20);
  const PlanDiff diff = DiffPlans(a, b);
  ASSERT_EQ(diff.parallel.size(), 3u);
  EXPECT_EQ(diff.parallel[0], (ParallelChange{"all-to-all ×2", 0, 1, 0, 0, 3 << 20, 0}));
  EXPECT_EQ(diff.parallel[1], (ParallelChange{"combine ×4", 1, 0, 0, 1 << 20, 0, 0}));
  EXPECT_EQ(diff.parallel[2], (ParallelChange{"reduce ×4", 0, 0, 1, 0, 0, 3 << 20}));
  const std::string text = RenderPlanDiff(diff, "a", "b");
  EXPECT_THAT(text, HasSubstr("  all-to-all ×2  added 1 edge, 3.0 MiB\n"));
  EXPECT_THAT(text, HasSubstr("  combine ×4     removed 1 edge, 1.0 MiB\n"));
  EXPECT_THAT(text, HasSubstr("  reduce ×4      altered 1 edge, +3.0 MiB\n"));
}

TEST(DiffTest, PredictionsAndAlternatives) {
  const v1::Plan a = LayeredPlan(1, 2);
  v1::Plan b = a;
  b.mutable_prediction()->set_step_seconds(0.08);
  b.mutable_operators(0)->set_predicted_seconds(1e-3);
  b.mutable_alternatives(1)->clear_refused();
  b.mutable_alternatives()->DeleteSubrange(0, 1);
  b.mutable_search()->set_seed(8);
  const std::string text = RenderPlanDiff(DiffPlans(a, b), "a", "b");
  EXPECT_THAT(text, HasSubstr("  step           100.00 ms  80.00 ms   -20.00 ms (-20.0 %)\n"));
  EXPECT_THAT(text, HasSubstr("1 more are split alike but predicted to take -2.00 ms together\n"));
  EXPECT_THAT(text, HasSubstr("  data parallel  150.00 ms              -\n"));
  EXPECT_THAT(text, HasSubstr("  single device  200.00 ms, cannot run  200.00 ms\n"));
  EXPECT_THAT(text, HasSubstr("\nSearch\n        a  b\n  seed  7  8\n"));
}

TEST(DiffTest, HostileNamesAreEscapedForTerminals) {
  v1::Plan a = LayeredPlan(1, 2), b = a;
  a.mutable_operators(0)->set_node("\x1B[2J\n\xFF" + std::string(5000, 'x'));
  (*a.mutable_operators(1)->mutable_degrees())["\x1B]0;"] = 2;
  a.mutable_devices(0)->set_model("\x07");
  a.mutable_alternatives(0)->set_name("\r");
  const std::string text = RenderPlanDiff(DiffPlans(a, b), "\x1B[31m", "");
  for (char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  EXPECT_LT(text.size(), 5000u);
}

TEST(DiffTest, JsonHasTheSameFacts) {
  const v1::Plan a = LayeredPlan(2, 4);
  v1::Plan b = LayeredPlan(3, 8);
  b.mutable_operators(0)->set_node("\xFF\"");
  b.mutable_prediction()->set_step_seconds(std::numeric_limits<double>::infinity());
  b.mutable_alternatives()->RemoveLast();
  const PlanDiff diff = DiffPlans(a, b);
  const auto json = nlohmann::json::parse(PlanDiffToJson(diff, "a", "b\xFE"), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["a"], "a");
  EXPECT_EQ(json["b"], "b\uFFFD");
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["operators"].size(), diff.operators.size());
  EXPECT_EQ(json["operators"][0]["node"], "embed");
  EXPECT_EQ(json["operators"][0]["a"]["devices"], nlohmann::json({0, 1, 2, 3}));
  EXPECT_TRUE(json["operators"][0]["b"].is_null());
  EXPECT_EQ(json["devices"].size(), 4u);
  EXPECT_TRUE(json["devices"][0]["a"].is_null());
  EXPECT_EQ(json["prediction"]["step"]["a"], 0.1);
  EXPECT_TRUE(json["prediction"]["step"]["b"].is_null());
  EXPECT_EQ(json["alternatives"][0]["a"]["fits"], false);
  EXPECT_TRUE(json["alternatives"][0]["b"].is_null());
  EXPECT_GT(json["parallel_operators"].size(), 0u);
  EXPECT_EQ(nlohmann::json::parse(PlanDiffToJson(DiffPlans(a, a), "a", "b"))["equal"], true);
}

}  // namespace
}  // namespace espalier
