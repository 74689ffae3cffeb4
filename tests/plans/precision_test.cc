// Training in mixed precision with loss scaling: the curve is that of f32 up to the rounding of the
// narrow type, parameters are f32, a power-of-two scale changes nothing, and a step that overflows
// updates nothing.
#include "ops/graph/precision.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"

namespace espalier {
namespace {

constexpr int kSteps = 40;
constexpr double kRate = 3e-3;

class Precision : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    auto job = GetParam() ? SmallLlama(registry_) : DigitsCnn(registry_);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }

  static v1::Optimizer Plain() {
    v1::Optimizer optimizer = AdamW(kRate);
    optimizer.clear_clip_norm();
    return optimizer;
  }
  static v1::Optimizer Scaled(double initial, int64_t growth_interval) {
    v1::Optimizer optimizer = Plain();
    optimizer.mutable_loss_scale()->set_initial(initial);
    optimizer.mutable_loss_scale()->set_growth_interval(growth_interval);
    return optimizer;
  }

  InProcessRun Train(DType compute, const v1::Optimizer& optimizer, int devices = 1,
                     int steps = kSteps) {
    absl::StatusOr<Graph> graph = WithPrecision(registry_, job_.graph, compute);
    EXPECT_TRUE(graph.ok()) << graph.status();
    if (!graph.ok()) return {};
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &*graph;
    problem.batch_size = job_.batch;
    problem.machine = TestMachine(devices);
    problem.optimizer = optimizer;
    problem.cost = &cost_;
    v1::SearchOptions search;
    search.set_strategy(devices == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                     : v1::SearchOptions::DATA_PARALLEL);
    absl::StatusOr<v1::Plan> plan = MakePlan(problem, search);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    TrainingRunOptions options;
    options.steps = steps;
    options.batch_size = job_.batch;
    options.lowering = {optimizer, 11, job_.columns};
    absl::StatusOr<InProcessRun> run =
        TrainInProcess(registry_, *graph, *plan, job_.dataset, options);
    EXPECT_TRUE(run.ok()) << run.status();
    return run.ok() ? *std::move(run) : InProcessRun{};
  }

  static double WorstDifference(const InProcessRun& a, const InProcessRun& b) {
    if (a.losses.size() != b.losses.size() || a.losses.empty()) return INFINITY;
    double worst = 0;
    for (size_t i = 0; i < a.losses.size(); ++i) {
      worst = std::max(worst, std::abs(a.losses[i] - b.losses[i]) / std::abs(b.losses[i]));
    }
    return worst;
  }

  static double MeanOfLast(const InProcessRun& run) {
    return std::accumulate(run.losses.end() - kSteps / 2, run.losses.end(), 0.0) / (kSteps / 2);
  }

  OpRegistry registry_;
  SmallTrainingJob job_;
  AnalyticCost cost_;
};

TEST_P(Precision, FollowsTheLossCurveOfF32) {
  const InProcessRun wide = Train(DType::kF32, Plain());
  ASSERT_LT(wide.losses.back(), 0.9 * wide.losses.front());
  const InProcessRun bf16 = Train(DType::kBF16, Plain());
  const InProcessRun f16 = Train(DType::kF16, Scaled(65536, 2000));
  // The first loss differs by the narrow type's rounding only. Later ones fluctuate around f32's,
  // since Adam follows the signs of small gradients; their mean does not.
  struct Expected {
    const char* name;
    const InProcessRun& run;
    double epsilon;  // half an ulp of 1
  };
  for (const Expected& e : {Expected{"bf16", bf16, 0x1p-8}, Expected{"f16", f16, 0x1p-11}}) {
    const double first = std::abs(e.run.losses[0] / wide.losses[0] - 1);
    const double mean = std::abs(MeanOfLast(e.run) / MeanOfLast(wide) - 1);
    std::printf("%s off f32: first loss %.1e, mean of the last %d %.1e\n", e.name, first,
                kSteps / 2, mean);
    EXPECT_GT(first, 0) << e.name << " is not computed with";
    EXPECT_LT(first, e.epsilon);
    EXPECT_LT(mean, 0.03);
  }
  for (const auto& [name, bytes] : f16.parameters) {
    EXPECT_EQ(bytes.size(), wide.parameters.at(name).size()) << name;
  }
}

TEST_P(Precision, TwoDevicesFollowOne) {
  const InProcessRun one = Train(DType::kF16, Scaled(65536, 2000));
  const InProcessRun two = Train(DType::kF16, Scaled(65536, 2000), 2);
  EXPECT_NEAR(two.losses[0], one.losses[0], 1e-3 * one.losses[0]);
  EXPECT_NEAR(MeanOfLast(two), MeanOfLast(one), 0.03 * MeanOfLast(one));
  EXPECT_EQ(one.reported.at("loss_scale"), two.reported.at("loss_scale"));
}

TEST_P(Precision, PowerOfTwoLossScaleChangesNoBitInF32) {
  const InProcessRun plain = Train(DType::kF32, Plain());
  for (double factor : {1024.0, 0x1p-10}) {
    const InProcessRun scaled = Train(DType::kF32, Scaled(factor, 0));
    EXPECT_EQ(scaled.losses, plain.losses) << factor;
    EXPECT_EQ(scaled.parameters, plain.parameters) << factor;
    EXPECT_EQ(scaled.reported.at("loss_scale"), std::vector<double>(kSteps, factor));
  }
}

TEST_P(Precision, OverflowSkipsTheUpdateAndHalvesTheScale) {
  // Squares of gradients beyond 2^64 are infinite.
  const InProcessRun run = Train(DType::kF32, Scaled(0x1p80, 1000));
  const std::vector<double>& scale = run.reported.at("loss_scale");
  ASSERT_EQ(scale.size(), static_cast<size_t>(kSteps));
  int skipped = 0;
  while (skipped + 1 < kSteps && scale[skipped + 1] < scale[skipped]) ++skipped;
  ASSERT_GT(skipped, 2);
  ASSERT_LT(skipped, kSteps - 5);
  for (int i = 0; i <= skipped; ++i) EXPECT_EQ(scale[i], std::ldexp(0x1p80, -i)) << i;
  // Until then losses equal those of a run with constant parameters.
  v1::Optimizer still = Plain();
  still.mutable_learning_rate()->set_peak(1e-30);
  const InProcessRun unmoved = Train(DType::kF32, still, 1, skipped + 1);
  for (int i = 0; i <= skipped; ++i) EXPECT_EQ(run.losses[i], unmoved.losses[i]) << i;
  // The first applied update is Adam's first at any step number: each element moves by the learning
  // rate (except for weight decay) or not at all.
  const InProcessRun first = Train(DType::kF32, Scaled(0x1p80, 1000), 1, skipped + 1);
  int64_t full = 0, all = 0;
  for (const auto& [name, bytes] : first.parameters) {
    const std::vector<char>& before = unmoved.parameters.at(name);
    ASSERT_EQ(bytes.size(), before.size());
    for (size_t at = 0; at < bytes.size(); at += sizeof(float), ++all) {
      float a, b;
      std::memcpy(&a, &bytes[at], sizeof(a));
      std::memcpy(&b, &before[at], sizeof(b));
      const double moved = std::abs(static_cast<double>(a) - b);
      EXPECT_LT(moved, kRate * 1.05 + kRate * 0.01 * std::abs(b)) << name;
      full += moved > kRate * 0.9;
    }
  }
  EXPECT_GT(full, all / 2);
}

TEST_P(Precision, ScaleGrowsAfterStepsWithoutOverflow) {
  const InProcessRun run = Train(DType::kF32, Scaled(4, 3), 1, 10);
  EXPECT_EQ(run.reported.at("loss_scale"), (std::vector<double>{4, 4, 4, 8, 8, 8, 16, 16, 16, 32}));
}

TEST_P(Precision, ClippingUsesTheUnscaledNorm) {
  v1::Optimizer clipped = Plain();
  clipped.set_clip_norm(0.5);
  const InProcessRun plain = Train(DType::kF32, clipped, 1, 10);
  *clipped.mutable_loss_scale() = Scaled(4096, 0).loss_scale();
  const InProcessRun scaled = Train(DType::kF32, clipped, 1, 10);
  EXPECT_LT(WorstDifference(scaled, plain), 1e-5);
  for (int i = 0; i < 10; ++i) {
    const double norm = plain.reported.at("gradient_norm")[i];
    EXPECT_NEAR(scaled.reported.at("gradient_norm")[i], norm, 1e-5 * norm) << i;
  }
}

TEST_P(Precision, PenaltiesAreNotScaled) {
  v1::Optimizer optimizer = Plain();
  v1::Regularizer* all = optimizer.add_regularizers();
  all->set_l1(1e-3);
  all->set_l2(1e-2);
  const InProcessRun plain = Train(DType::kF32, optimizer, 1, 10);
  *optimizer.mutable_loss_scale() = Scaled(4096, 0).loss_scale();
  const InProcessRun scaled = Train(DType::kF32, optimizer, 1, 10);
  EXPECT_EQ(scaled.losses, plain.losses);
}

INSTANTIATE_TEST_SUITE_P(Models, Precision, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Llama" : "DigitsCnn"; });

}  // namespace
}  // namespace espalier
