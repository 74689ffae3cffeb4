#include "planner/plan/calibrate_operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "planner/cost/analytic_cost.h"
#include "planner/report/timeline.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

// A worker whose times differ from every prediction.
class SlowWorker : public CostModel {
 public:
  explicit SlowWorker(double factor) : factor_(factor) {}
  Times Measure(const OpDef& def, const NodeTypes& shard, const v1::Device& device) override {
    Times times = analytic_.Measure(def, shard, device);
    const double factor = def.name == "relu" ? 3 * factor_ : factor_;
    return {times.forward * factor, times.backward * factor};
  }

 private:
  const double factor_;
  AnalyticCost analytic_;
};

class CalibrateOperatorsTest : public ::testing::Test {
 protected:
  PlanProblem Problem(CostModel* cost) {
    PlanProblem problem;
    problem.registry = &TestRegistry();
    problem.graph = &graph_;
    problem.batch_size = 256;
    problem.machine = TestMachine(2);
    problem.optimizer = TestOptimizer();
    problem.cost = cost;
    return problem;
  }

  v1::Plan DataParallel(CostModel* cost) {
    v1::SearchOptions options;
    options.set_strategy(v1::SearchOptions::DATA_PARALLEL);
    absl::StatusOr<v1::Plan> plan = MakePlan(Problem(cost), options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : v1::Plan();
  }

  // The times that the workers of `truth` report for a step, and the step's duration.
  std::vector<std::vector<OperatorTime>> Run(const v1::Plan& plan, CostModel* truth,
                                             double* seconds) {
    absl::StatusOr<std::shared_ptr<const Timeline>> step = SimulatePlan(Problem(truth), plan);
    EXPECT_TRUE(step.ok()) << step.status();
    *seconds = (*step)->seconds;
    std::vector<std::vector<OperatorTime>> times(2);
    for (const TimelineTask& task : (*step)->tasks) {
      const bool forward = task.kind == TimelineTask::kForward;
      if (task.communicates || (!forward && task.kind != TimelineTask::kBackward)) continue;
      for (const Node& node : graph_.nodes()) {
        if (node.name != task.node) continue;
        times[task.device].push_back(
            {node.name, forward ? node.op : node.op + "_grad", task.end - task.begin});
      }
    }
    return times;
  }

  absl::StatusOr<std::vector<PredictionError>> Observe(
      const v1::Plan& plan, const std::vector<std::vector<OperatorTime>>& times) {
    return CalibrateOperators(TestRegistry(), graph_, plan, times, &cost_);
  }

  const Graph graph_ = Mlp(256, 512, 512, 512);
  AnalyticCost analytic_;
  MeasuredCost cost_{&analytic_};
};

TEST_F(CalibrateOperatorsTest, OneRunCalibratesPredictionOfSlowWorker) {
  SlowWorker worker(2);
  const v1::Plan plan = DataParallel(&cost_);
  double truth = 0;
  const auto times = Run(plan, &worker, &truth);
  // Large enough for a warning.
  ASSERT_LT(plan.prediction().step_seconds(), 0.75 * truth);
  auto drifts = Observe(plan, times);
  ASSERT_TRUE(drifts.ok()) << drifts.status();
  const v1::Plan next = DataParallel(&cost_);
  EXPECT_NEAR(next.prediction().step_seconds() / truth, 1, 0.01);
  // Another coordinator that reads the file predicts the same.
  MeasuredCost elsewhere(&analytic_);
  ASSERT_EQ(elsewhere.Load(cost_.Save()), absl::OkStatus());
  EXPECT_EQ(DataParallel(&elsewhere).prediction().step_seconds(), next.prediction().step_seconds());
}

TEST_F(CalibrateOperatorsTest, ReportsLargestErrorFirst) {
  SlowWorker worker(2);
  const v1::Plan plan = DataParallel(&cost_);
  double truth = 0;
  auto drifts = Observe(plan, Run(plan, &worker, &truth));
  ASSERT_TRUE(drifts.ok()) << drifts.status();
  ASSERT_GE(drifts->size(), 3u);
  for (size_t i = 1; i < drifts->size(); ++i) {
    EXPECT_GE((*drifts)[i - 1].measured_seconds - (*drifts)[i - 1].predicted_seconds,
              (*drifts)[i].measured_seconds - (*drifts)[i].predicted_seconds);
  }
  for (const PredictionError& drift : *drifts) {
    EXPECT_NEAR(drift.measured_seconds / drift.predicted_seconds, drift.node == "act" ? 6 : 2, 1e-3)
        << drift.node;
  }
}

TEST_F(CalibrateOperatorsTest, LaterRunsCountMoreWithLimitedEffect) {
  const v1::Plan plan = DataParallel(&cost_);
  const double guessed = plan.prediction().step_seconds();
  SlowWorker slow(2), usual(1);
  double seconds = 0;
  ASSERT_TRUE(Observe(plan, Run(plan, &usual, &seconds)).ok());
  const double before = DataParallel(&cost_).prediction().step_seconds();
  ASSERT_TRUE(Observe(plan, Run(plan, &slow, &seconds)).ok());
  const double once = DataParallel(&cost_).prediction().step_seconds();
  EXPECT_GT(once, 1.1 * before);
  EXPECT_LT(once, 0.95 * seconds);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Observe(plan, Run(plan, &slow, &seconds)).ok());
  EXPECT_NEAR(DataParallel(&cost_).prediction().step_seconds() / seconds, 1, 0.05);
  EXPECT_GE(before, guessed);
}

TEST_F(CalibrateOperatorsTest, DevicesThatShareCoresAreIgnored) {
  v1::Plan plan = DataParallel(&cost_);
  for (v1::Device& device : *plan.mutable_devices()) {
    device.set_host("one");
    device.set_host_cores(1);
    device.set_threads(1);
  }
  SlowWorker worker(2);
  double truth = 0;
  auto drifts = Observe(plan, Run(plan, &worker, &truth));
  ASSERT_TRUE(drifts.ok()) << drifts.status();
  EXPECT_TRUE(drifts->empty());
  EXPECT_EQ(cost_.size(), 0u);
}

TEST_F(CalibrateOperatorsTest, InvalidTimesAndOtherPlansAreIgnored) {
  const v1::Plan plan = DataParallel(&cost_);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto drifts = Observe(plan, {{{"fc1", "linear", nan},
                                {"fc1", "linear_grad", -1},
                                {"fc2", "conv2d", 5},
                                {"nobody", "linear", 5},
                                {"act", "all_reduce", 5}},
                               {},
                               {{"fc1", "linear", 5}}});
  ASSERT_TRUE(drifts.ok()) << drifts.status();
  EXPECT_TRUE(drifts->empty());
  EXPECT_EQ(cost_.size(), 0u);
  // A plan of another graph.
  const Graph other = Mlp(64);
  EXPECT_TRUE(absl::IsInvalidArgument(
      CalibrateOperators(TestRegistry(), other, plan, {}, &cost_).status()));
}

}  // namespace
}  // namespace espalier
