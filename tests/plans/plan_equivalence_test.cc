// Plans do not change the result: for any split and placement the loss curve equals that of one
// device up to the rounding of sums, and the same plan twice gives the same bits.
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"

namespace espalier {
namespace {

constexpr int kSteps = 50;
constexpr double kTolerance = 1e-6;  // relative

class PlanEquivalence : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    auto job = GetParam() ? SmallLlama(registry_) : DigitsCnn(registry_);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }

  PlanProblem Problem(int devices) {
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &job_.graph;
    problem.batch_size = job_.batch;
    problem.machine = TestMachine(devices);
    problem.optimizer = AdamW(3e-3);
    problem.cost = &cost_;
    return problem;
  }

  absl::StatusOr<InProcessRun> Train(const absl::StatusOr<v1::Plan>& plan, int steps = kSteps) {
    if (!plan.ok()) return plan.status();
    TrainingRunOptions options;
    options.steps = steps;
    options.batch_size = job_.batch;
    options.lowering.optimizer = AdamW(3e-3);
    options.lowering.seed = 11;
    options.lowering.columns = job_.columns;
    return TrainInProcess(registry_, job_.graph, *plan, job_.dataset, options);
  }

  absl::StatusOr<v1::Plan> Strategy(int devices, v1::SearchOptions::Strategy strategy) {
    v1::SearchOptions options;
    options.set_strategy(strategy);
    options.set_budget(300);
    return MakePlan(Problem(devices), options);
  }

  void ExpectSameCurve(const InProcessRun& reference, const absl::StatusOr<InProcessRun>& run,
                       const char* what) {
    ASSERT_TRUE(run.ok()) << what << ": " << run.status();
    ASSERT_EQ(run->losses.size(), reference.losses.size()) << what;
    const double worst = LargestRelativeDifference(reference, *run);
    std::printf("%-28s largest relative difference over %d steps: %.1e\n", what, kSteps, worst);
    EXPECT_LT(worst, kTolerance) << what;
  }

  OpRegistry registry_;
  SmallTrainingJob job_;
  AnalyticCost cost_;
};

TEST_P(PlanEquivalence, EveryPlanGivesTheLossCurveOfOneDevice) {
  const auto single = Train(Strategy(1, v1::SearchOptions::SINGLE_DEVICE));
  ASSERT_TRUE(single.ok()) << single.status();
  // It learns: a constant curve would be equal under any plan.
  EXPECT_LT(single->losses.back(), 0.9 * single->losses.front());
  for (int devices : {2, 4}) {
    ExpectSameCurve(*single, Train(Strategy(devices, v1::SearchOptions::DATA_PARALLEL)),
                    devices == 2 ? "data parallel, 2 devices" : "data parallel, 4 devices");
  }
  const auto split = [](std::vector<AxisKind> kinds) {
    return [kinds](int index, const Node&, const SplitRule& rule) {
      return SplitFirst(index, rule, kinds, 2);
    };
  };
  ExpectSameCurve(*single,
                  Train(ManualPlan(Problem(2), split({AxisKind::kParameter, AxisKind::kSample}))),
                  "parameter parallel");
  ExpectSameCurve(*single,
                  Train(ManualPlan(Problem(2), split({AxisKind::kAttribute, AxisKind::kSample}))),
                  "attribute parallel");
  ExpectSameCurve(*single,
                  Train(ManualPlan(Problem(2), split({AxisKind::kReduction, AxisKind::kSample}))),
                  "reduction parallel");
  // Images split into strips: convolution windows read beyond them (halos).
  const auto strips = [](const char* axis, int parts) {
    return [axis, parts](int index, const Node&, const SplitRule& rule) {
      for (const Axis& candidate : rule.axes) {
        if (candidate.name != axis || candidate.size % parts != 0) continue;
        Choice choice{{{axis, parts}}, {}};
        for (int d = 0; d < parts; ++d) choice.devices.push_back(d);
        return choice;
      }
      return SplitFirst(index, rule, {AxisKind::kSample}, parts);
    };
  };
  for (const auto& [axis, parts] : {std::pair("height", 2), std::pair("width", 4)}) {
    ExpectSameCurve(*single, Train(ManualPlan(Problem(parts), strips(axis, parts))), axis);
  }
  const auto alternate = [](int index, const Node&, const SplitRule&) {
    return Choice{{}, {index % 2}};
  };
  ExpectSameCurve(*single, Train(ManualPlan(Problem(2), alternate)), "operators on two devices");
  const auto mixed = [](int index, const Node&, const SplitRule& rule) {
    const std::vector<AxisKind> kinds[] = {{AxisKind::kSample},
                                           {AxisKind::kParameter, AxisKind::kAttribute},
                                           {},
                                           {AxisKind::kReduction, AxisKind::kSample}};
    Choice choice = SplitFirst(index, rule, kinds[index % 4], 2);
    // Any two of four devices, in any order.
    if (choice.devices.size() == 2) {
      choice.devices = {(index + 1) % 4, (3 * index + 3) % 4};
      if (choice.devices[0] == choice.devices[1]) choice.devices[1] = (choice.devices[0] + 1) % 4;
    } else {
      choice.devices = {index % 4};
    }
    return choice;
  };
  ExpectSameCurve(*single, Train(ManualPlan(Problem(4), mixed)), "mixed on four devices");
  ExpectSameCurve(*single, Train(Strategy(2, v1::SearchOptions::SEARCH)), "searched, 2 devices");
  ExpectSameCurve(*single, Train(Strategy(4, v1::SearchOptions::SEARCH)), "searched, 4 devices");
}

TEST_P(PlanEquivalence, TheSamePlanTwiceGivesTheSameBits) {
  for (auto strategy : {v1::SearchOptions::DATA_PARALLEL, v1::SearchOptions::SEARCH}) {
    const auto plan = Strategy(2, strategy);
    const auto first = Train(plan, 20), second = Train(plan, 20);
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(first->losses, second->losses);
  }
}

TEST_P(PlanEquivalence, PeakMemoryIsWhatTheProgramSaid) {
  const auto plan = Strategy(2, v1::SearchOptions::DATA_PARALLEL);
  const auto run = Train(plan, 2);
  ASSERT_TRUE(run.ok()) << run.status();
  for (int rank = 0; rank < 2; ++rank) {
    const double predicted = static_cast<double>(plan->prediction().peak_bytes(rank));
    const double measured = static_cast<double>(run->measured_peak_bytes[rank]);
    std::printf("rank %d: predicted %.0f bytes, measured %.0f\n", rank, predicted, measured);
    // Kernel workspaces are not predicted.
    EXPECT_GE(measured, 0.99 * predicted);
    EXPECT_LE(measured, 1.5 * predicted + (8 << 20));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlanEquivalence, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Llama" : "DigitsCnn"; });

}  // namespace
}  // namespace espalier
