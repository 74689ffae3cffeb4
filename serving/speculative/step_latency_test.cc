#include "serving/speculative/step_latency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <utility>

namespace espalier {
namespace {

double Line(int rows) { return 0.5 + 0.1 * rows; }

TEST(StepLatency, IsLinearBetweenKnownSizesAndProportionalBeyond) {
  StepLatency latency;
  EXPECT_EQ(latency.Seconds(5), 0);
  for (const int rows : {1, 2, 4, 8, 16, 32, 64}) latency.Observe(rows, Line(rows));
  for (const int rows : {1, 3, 8, 20, 50, 64}) {
    EXPECT_NEAR(latency.Seconds(rows), Line(rows), 0.01) << rows;
  }
  EXPECT_NEAR(latency.Seconds(128), 2 * Line(64), 0.01);
}

TEST(StepLatency, MoreRowsNeverCostLess) {
  std::mt19937 random(2);
  StepLatency latency;
  for (int i = 0; i < 500; ++i) {
    const int rows = 1 + static_cast<int>(random() % 250);
    latency.Observe(rows, Line(rows) + 0.001 * static_cast<double>(random() % 10000));
    for (int size = 1; size < 300; size += 7) {
      ASSERT_LE(latency.Seconds(size), latency.Seconds(size + 7) + 1e-12) << i << ", " << size;
    }
  }
}

TEST(StepLatency, InterruptedStepsChangeLittle) {
  StepLatency latency;
  for (int i = 0; i < 400; ++i) {
    latency.Observe(4, i % 20 == 10 ? 50 : 1);
    latency.Observe(12, 2);
  }
  EXPECT_NEAR(latency.Seconds(4), 1, 0.15);
  EXPECT_NEAR(latency.Seconds(12), 2, 0.15);
}

// Other processes come and go: what runs meanwhile does not seem dearer than what does not.
TEST(StepLatency, ASlowerMachineKeepsTheRatioOfSizes) {
  for (const int spell : {20, 40, 400}) {
    for (const int runs : {16, 24}) {
      StepLatency latency;
      for (int i = 0; i < 60; ++i) {
        for (const int rows : {16, 24}) latency.Observe(rows, Line(rows));
      }
      for (int i = 0; i < spell; ++i) latency.Observe(runs, 1.4 * Line(runs));
      EXPECT_NEAR(latency.Seconds(runs), 1.4 * Line(runs), 0.1 * Line(runs)) << spell;
      EXPECT_NEAR(latency.Seconds(24) / latency.Seconds(16), Line(24) / Line(16), 0.2) << spell;
      for (int i = 0; i < 40; ++i) {
        for (const int rows : {16, 24}) latency.Observe(rows, Line(rows));
      }
      EXPECT_NEAR(latency.Seconds(24) / latency.Seconds(16), Line(24) / Line(16), 0.1) << spell;
    }
  }
}

TEST(StepLatency, SizesThatAreNotRunDoNotDriftAway) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  StepLatency latency;
  for (int i = 0; i < 60; ++i) {
    for (const int rows : {10, 12}) latency.Observe(rows, 0.1 * rows);
  }
  for (int i = 0; i < 10000; ++i) {
    latency.Observe(10, std::exp(0.05 * std::abs(normal(random))));
    ASSERT_NEAR(latency.Seconds(12) / latency.Seconds(10), 1.2, 0.15) << i;
  }
}

// Larger sizes were timed in a bad moment and are not run for it: that they cannot take longer than
// several steps of a size that is known makes them worth a try.
TEST(StepLatency, ABadCalibrationIsBoundedByKnownSizes) {
  StepLatency latency;
  for (const int rows : {1, 2, 4, 8, 16, 32}) {
    latency.Observe(rows, Line(rows) * (rows > 4 ? 20 : 1));
  }
  for (int i = 0; i < 100; ++i) latency.Observe(4, Line(4));
  for (const int rows : {8, 16, 32}) {
    EXPECT_LE(latency.Seconds(rows), rows / 4 * Line(4) + 1e-9) << rows;
  }
  // One that is run is corrected.
  for (int i = 0; i < 100; ++i) latency.Observe(8, Line(8));
  EXPECT_NEAR(latency.Seconds(8), Line(8), 0.05);
}

RunnerLimits LargeLimits(int rows, int sequences) {
  return {.vocabulary = 2,
          .kv_slots = 16384,
          .max_rows = rows,
          .max_sequences = sequences,
          .max_context_slots = 16384,
          .max_positions = 1024};
}

// A runner whose steps take what a formula says.
class TimedRunner : public ModelRunner {
 public:
  TimedRunner(RunnerLimits limits, std::function<double(const RunnerBatch&)> seconds)
      : limits_(limits), of_(std::move(seconds)) {}

  RunnerLimits limits() const override { return limits_; }
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    EXPECT_LE(batch.rows(), limits_.max_rows);
    EXPECT_LE(batch.sequence_start.size(), limits_.max_sequences + 1u);
    EXPECT_LE(batch.sequence_slots.size(), limits_.max_context_slots + 0u);
    EXPECT_THAT(batch.sequence_slots, testing::Each(testing::Lt(limits_.kv_slots)));
    EXPECT_THAT(batch.positions, testing::Each(testing::Lt(limits_.max_positions)));
    for (const int slot : batch.slots) written_.insert(slot);
    for (const int slot : batch.sequence_slots) read_unwritten_ += written_.count(slot) == 0;
    now_ += of_(batch);
    logits->vocabulary = limits_.vocabulary;
    logits->values.assign(batch.logit_rows.size() * limits_.vocabulary, 0);
    return absl::OkStatus();
  }
  std::function<double()> clock() {
    return [this] { return now_; };
  }
  int read_unwritten() const { return read_unwritten_; }

 private:
  RunnerLimits limits_;
  std::function<double(const RunnerBatch&)> of_;
  std::set<int> written_;
  int read_unwritten_ = 0;
  double now_ = 0;
};

TEST(Calibrate, FindsTheCurve) {
  const RunnerLimits roomy = LargeLimits(512, 128);
  RunnerLimits tight = roomy;
  tight.kv_slots = tight.max_context_slots = 200;
  tight.max_sequences = 3;
  tight.max_rows = 20;
  tight.max_positions = 64;
  for (const RunnerLimits& limits : {roomy, tight}) {
    TimedRunner runner(limits, [](const RunnerBatch& batch) { return 1e-3 * Line(batch.rows()); });
    StepLatency latency;
    ASSERT_TRUE(Calibrate(runner, 400, 2, runner.clock(), &latency).ok());
    EXPECT_EQ(runner.read_unwritten(), 0);
    EXPECT_LT(runner.clock()(), 6);
    for (int rows = 1; rows <= std::min(400, limits.max_rows); rows += 3) {
      EXPECT_NEAR(latency.Seconds(rows), 1e-3 * Line(rows), 0.05e-3 * Line(rows)) << rows;
    }
  }
}

// Other processes come, or go, at any moment of it.
TEST(Calibrate, AMachineThatChangesItsSpeedMakesNoSizeDearer) {
  const RunnerLimits limits = LargeLimits(256, 256);
  for (int change = 0; change < 200; change += 7) {
    for (const bool comes : {true, false}) {
      int step = 0;
      TimedRunner runner(limits, [&](const RunnerBatch& batch) {
        return 1e-3 * Line(batch.rows()) * ((step++ < change) == comes ? 1 : 1.5);
      });
      StepLatency latency;
      ASSERT_TRUE(Calibrate(runner, 256, 2, runner.clock(), &latency).ok());
      for (const int rows : {1, 2, 4, 7, 16, 32, 64, 256}) {
        EXPECT_NEAR(latency.Seconds(rows) / latency.Seconds(8), Line(rows) / Line(8),
                    0.55 * Line(rows) / Line(8))
            << rows << ", " << change << ", " << comes;
      }
    }
  }
}

TEST(Calibrate, ColdCachesAfterALargeBatchMakeNoSizeDearer) {
  const auto curve = [](int rows) { return 0.2e-3 + 0.05e-3 * rows; };
  int last = 0, since = 0;
  TimedRunner runner(LargeLimits(256, 256), [&](const RunnerBatch& batch) {
    since = batch.rows() < last / 2 ? 0 : since + 1;
    last = batch.rows();
    return curve(batch.rows()) * (since == 0 ? 1.4 : since == 1 ? 1.1 : 1);
  });
  StepLatency latency;
  ASSERT_TRUE(Calibrate(runner, 256, 2, runner.clock(), &latency).ok());
  for (const int rows : {1, 2, 3, 8, 64}) {
    EXPECT_NEAR(latency.Seconds(rows), curve(rows), 0.05 * curve(rows)) << rows;
  }
}

TEST(Calibrate, LargeStepsOfFewPositionsAreSeveralPrompts) {
  const auto curve = [](int rows) { return (rows > 100 ? 4e-3 : 0.2e-3) + 0.05e-3 * rows; };
  RunnerLimits limits = LargeLimits(256, 16);
  limits.max_positions = 64;
  TimedRunner runner(limits, [&](const RunnerBatch& batch) { return curve(batch.rows()); });
  StepLatency latency;
  ASSERT_TRUE(Calibrate(runner, 256, 2, runner.clock(), &latency).ok());
  for (const int rows : {16, 64, 130, 256}) {
    EXPECT_NEAR(latency.Seconds(rows), curve(rows), 0.05 * curve(rows)) << rows;
  }
}

TEST(Calibrate, ASlowModelTakesAboutTheBudget) {
  TimedRunner runner(LargeLimits(512, 128),
                     [](const RunnerBatch& batch) { return 0.4 + 0.05 * batch.rows(); });
  StepLatency latency;
  ASSERT_TRUE(Calibrate(runner, 512, 2, runner.clock(), &latency).ok());
  EXPECT_LT(runner.clock()(), 6);
  EXPECT_GT(latency.Seconds(1), 0.4);
}

}  // namespace
}  // namespace espalier
