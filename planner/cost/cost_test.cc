#include "gtest/gtest.h"
#include "planner/cost/analytic_cost.h"
#include "planner/cost/measured_cost.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

NodeTypes Linear(int64_t rows, int64_t in, int64_t out) {
  NodeTypes types;
  types.inputs = {{DType::kF32, {rows, in}}, {DType::kF32, {out, in}}};
  types.outputs = {{DType::kF32, {rows, out}}};
  return types;
}

const OpDef& LinearDef() { return *TestRegistry().Find("linear"); }

TEST(AnalyticCostTest, FollowsTheRoofline) {
  AnalyticCost cost;
  const v1::Device device = TestMachine(1).devices[0];
  // 2 * 1024^3 FLOP at 1e11 FLOP/s.
  EXPECT_NEAR(cost.Measure(LinearDef(), Linear(1024, 1024, 1024), device).forward, 0.02147, 1e-4);
  EXPECT_NEAR(cost.Measure(LinearDef(), Linear(1024, 1024, 1024), device).backward, 0.04295, 1e-4);
  // One row: the weights' 4 MiB at 1e10 bytes/s.
  EXPECT_NEAR(cost.Measure(LinearDef(), Linear(1, 1024, 1024), device).forward, 4.22e-4, 1e-5);
}

TEST(MeasuredCostTest, MeasurementsTakePrecedenceAndCorrectEstimates) {
  AnalyticCost analytic;
  MeasuredCost cost(&analytic);
  const v1::Device device = TestMachine(1).devices[0];
  const NodeTypes measured = Linear(64, 512, 512), other = Linear(128, 512, 512);
  const CostModel::Times guess = analytic.Measure(LinearDef(), measured, device);
  const CostModel::Times other_guess = analytic.Measure(LinearDef(), other, device);
  EXPECT_EQ(cost.Measure(LinearDef(), other, device).forward, other_guess.forward);

  cost.Record(LinearDef(), measured, device, {3 * guess.forward, 2 * guess.backward});
  EXPECT_EQ(cost.Measure(LinearDef(), measured, device).forward, 3 * guess.forward);
  EXPECT_NEAR(cost.Measure(LinearDef(), other, device).forward, 3 * other_guess.forward, 1e-12);
  EXPECT_NEAR(cost.Measure(LinearDef(), other, device).backward, 2 * other_guess.backward, 1e-12);
  // Other operators and devices are unaffected.
  v1::Device faster = device;
  faster.set_model("other");
  EXPECT_EQ(cost.Measure(LinearDef(), other, faster).forward, other_guess.forward);
}

TEST(MeasuredCostTest, AsksOnceForEachShape) {
  AnalyticCost analytic;
  int asked = 0;
  MeasuredCost cost(&analytic, [&](const OpDef&, const NodeTypes&, const v1::Device&) {
    ++asked;
    return std::optional<CostModel::Times>({1e-3, 2e-3});
  });
  const v1::Device device = TestMachine(1).devices[0];
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cost.Measure(LinearDef(), Linear(8, 8, 8), device).backward, 2e-3);
  }
  cost.Measure(LinearDef(), Linear(16, 8, 8), device);
  EXPECT_EQ(asked, 2);
}

TEST(MeasuredCostTest, SavedTableIsReadBack) {
  AnalyticCost analytic;
  MeasuredCost cost(&analytic), again(&analytic);
  const v1::Device device = TestMachine(1).devices[0];
  cost.Record(LinearDef(), Linear(8, 16, 4), device, {1.25e-5, 2.5e-5});
  ASSERT_EQ(again.Load(cost.Save()), absl::OkStatus());
  EXPECT_TRUE(again.Has(LinearDef(), Linear(8, 16, 4), device));
  EXPECT_EQ(again.Measure(LinearDef(), Linear(8, 16, 4), device).forward, 1.25e-5);
  EXPECT_EQ(again.Save(), cost.Save());
  // Corrections for other shapes are saved, too.
  EXPECT_EQ(again.Measure(LinearDef(), Linear(64, 16, 4), device).forward,
            cost.Measure(LinearDef(), Linear(64, 16, 4), device).forward);
  EXPECT_NE(again.Measure(LinearDef(), Linear(64, 16, 4), device).forward,
            analytic.Measure(LinearDef(), Linear(64, 16, 4), device).forward);
}

TEST(MeasuredCostTest, RejectsBadTablesAtomically) {
  AnalyticCost analytic;
  for (const char* text :
       {"", "[]", "{", "{\"format_version\":2,\"entries\":[]}", "{\"format_version\":1}",
        "{\"format_version\":1,\"entries\":[{\"key\":\"a\",\"forward\":1,\"backward\":1},"
        "{\"key\":\"b\",\"forward\":-1,\"backward\":1}]}",
        "{\"format_version\":1,\"entries\":[],\"corrections\":[{\"kind\":\"a\"}]}",
        "{\"format_version\":1,\"entries\":[],\"corrections\":{\"kind\":1}}",
        "{\"format_version\":1,\"entries\":[{\"key\":1,\"forward\":1,\"backward\":1}]}",
        "{\"format_version\":1,\"entries\":[{\"key\":\"a\",\"forward\":1e999,\"backward\":1}]}"}) {
    MeasuredCost cost(&analytic);
    EXPECT_EQ(cost.Load(text).code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(cost.size(), 0u);
  }
}

// Two concurrent searches: each fork knows what was known before and its own measurements, a shape
// is measured once, and joining merges everything.
TEST(MeasuredCostTest, ForksAreIndependentUntilJoined) {
  AnalyticCost analytic;
  std::map<int64_t, int> asked;  // by rows
  MeasuredCost cost(&analytic, [&](const OpDef& def, const NodeTypes& shard, const v1::Device&) {
    const int64_t rows = shard.inputs[0].dims[0];
    const double times = ++asked[rows];
    return rows == 1 ? std::nullopt
                     : std::make_optional(CostModel::Times{0.1 * rows * times, 0.3 * rows * times});
  });
  const v1::Device device = TestMachine(1).devices[0];
  const auto of = [&](CostModel& model, int64_t rows) {
    return model.Measure(LinearDef(), Linear(rows, 512, 512), device).forward;
  };
  EXPECT_DOUBLE_EQ(of(cost, 2), 0.2);
  const double guess = of(cost, 1);
  const std::unique_ptr<CostModel> a = cost.Fork(), b = cost.Fork();
  EXPECT_DOUBLE_EQ(of(*a, 2), 0.2);
  EXPECT_DOUBLE_EQ(of(*a, 3), 0.3);
  EXPECT_DOUBLE_EQ(of(*b, 4), 0.4);
  EXPECT_DOUBLE_EQ(of(*b, 3), 0.3);
  EXPECT_EQ(asked[3], 1);
  // Each fork's estimates follow from its own measurements.
  EXPECT_EQ(of(cost, 1), guess);
  const double guess_a = of(*a, 1), guess_b = of(*b, 1);
  EXPECT_NE(guess_a, guess);
  EXPECT_NE(guess_a, guess_b);
  EXPECT_EQ(cost.size(), 1);
  cost.Join(*a);
  EXPECT_EQ(cost.size(), 2);
  EXPECT_EQ(of(cost, 1), guess_a);
  cost.Join(*b);
  EXPECT_EQ(cost.size(), 3);
  // Each shape counts once, as with a single model.
  MeasuredCost alone(&analytic);
  for (int64_t rows : {2, 3, 4}) {
    alone.Record(LinearDef(), Linear(rows, 512, 512), device, {0.1 * rows, 0.3 * rows});
  }
  EXPECT_EQ(of(cost, 1), of(alone, 1));
  EXPECT_EQ(cost.Save(), alone.Save());
}

}  // namespace
}  // namespace espalier
