#include "server/jobs/record_schedule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace espalier {
namespace {

constexpr double kNotice = 0.1;

struct Trained {
  std::vector<int64_t> checkpoints;  // steps done at each
  double seconds = 0;                // without the checkpoints
  double spent = 0;
};

// Trains all steps; a checkpoint is there two steps after the ranks have begun to write it.
Trained Train(RecordSchedule& schedule, int64_t first, int64_t total,
              const std::function<double(int64_t)>& step_seconds,
              const std::function<double(int64_t)>& checkpoint_seconds) {
  Trained trained;
  int64_t due = 0;
  for (int64_t done = first + 1; done <= total; ++done) {
    trained.seconds += step_seconds(done);
    schedule.StepDone(done, step_seconds(done));
    if (due > 0 && done == due + 2) {
      trained.spent += checkpoint_seconds(due);
      schedule.Written(due, checkpoint_seconds(due));
      trained.checkpoints.push_back(due);
      due = 0;
    }
    if (const int64_t at = schedule.Due(kNotice); at > 0) {
      EXPECT_EQ(due, 0) << "asked again before the checkpoint was there";
      EXPECT_GT(at, done);
      EXPECT_LT(at, total);
      const double step = trained.seconds / static_cast<double>(done - first);
      EXPECT_LE(static_cast<double>(at - done) * step, 2 * (kNotice + step)) << "too long before";
      schedule.Asked(at);
      due = at;
    }
  }
  return trained;
}

std::function<double(int64_t)> Always(double seconds) {
  return [seconds](int64_t) { return seconds; };
}

TEST(RecordSchedule, CheckpointsAtTheEndsOfEpochsTakeTheBudgetAndNoMore) {
  RecordSchedule schedule({.restore_seconds = 0.25, .total_steps = 20'000, .epoch_steps = 60});
  const Trained trained = Train(schedule, 0, 20'000, Always(0.01), Always(0.1));
  EXPECT_LE(trained.spent, trained.seconds / 15);
  EXPECT_GE(trained.spent, 0.9 * trained.seconds / 15);
  for (const int64_t at : trained.checkpoints) EXPECT_EQ(at % 60, 0);
}

TEST(RecordSchedule, CheapOnesAreAtTheEndOfEveryEpoch) {
  RecordSchedule schedule({.restore_seconds = 0.2, .total_steps = 20'000, .epoch_steps = 100});
  const Trained trained = Train(schedule, 0, 20'000, Always(0.01), Always(0.02));
  EXPECT_GE(trained.checkpoints.size(), 190u) << "but for the first ones and the last";
}

TEST(RecordSchedule, CostsThatVaryStayWithinTheBudget) {
  for (const double overhead : {0.01, 1.0 / 15, 0.2}) {
    for (const int64_t epoch : {int64_t{0}, int64_t{10}, int64_t{1'000'000}}) {
      RecordSchedule schedule({.overhead = overhead,
                               .restore_seconds = 0.1,
                               .total_steps = 30'000,
                               .epoch_steps = epoch});
      // Some are 20 times as expensive as others, and steps become faster.
      const auto cost = [](int64_t done) { return done % 7 == 0 ? 0.2 : 0.01; };
      const auto seconds = [](int64_t done) { return done < 15'000 ? 0.02 : 0.005; };
      const Trained trained = Train(schedule, 0, 30'000, seconds, cost);
      EXPECT_GE(trained.checkpoints.size(), 3u);
      // At most one is more expensive than expected.
      EXPECT_LE(trained.spent, overhead * trained.seconds + 0.2);
    }
  }
}

TEST(RecordSchedule, WithinAnEpochATenthOfTheBudgetIsSpent) {
  RecordSchedule schedule({.restore_seconds = 0.3, .total_steps = 600, .epoch_steps = 2000});
  const Trained trained = Train(schedule, 0, 600, Always(0.4), Always(0.1));
  EXPECT_GE(trained.checkpoints.size(), 10u) << "a job without a whole epoch has some, too";
  EXPECT_LE(trained.spent, 0.01 * trained.seconds);
}

TEST(RecordSchedule, StepsOfMicrosecondsHaveAFew) {
  for (const int64_t epoch : {int64_t{0}, int64_t{8}, int64_t{100'000}}) {
    // 10 seconds, and 20 minutes.
    for (const int64_t total : {int64_t{100'000}, int64_t{12'000'000}}) {
      RecordSchedule schedule({.restore_seconds = 0.2, .total_steps = total, .epoch_steps = epoch});
      const Trained trained = Train(schedule, 0, total, Always(100e-6), Always(1e-3));
      EXPECT_GE(trained.checkpoints.size(), epoch == 8 || total > 1'000'000 ? 10u : 0u);
      EXPECT_LE(trained.checkpoints.size(), total < 1'000'000 ? 18u : 500u);
    }
  }
}

TEST(RecordSchedule, LargeOnesHaveToBeAffordable) {
  // A checkpoint takes a minute.
  const auto count = [](int64_t total) {
    RecordSchedule schedule({.restore_seconds = 60, .total_steps = total, .epoch_steps = 10});
    return Train(schedule, 0, total, Always(1), Always(60)).checkpoints.size();
  };
  EXPECT_EQ(count(15 * 60), 0u);
  EXPECT_EQ(count(15 * 60 + 60), 1u);
  EXPECT_EQ(count(10 * 15 * 60 + 60), 10u);
}

TEST(RecordSchedule, AJobOfASecondHasNone) {
  RecordSchedule schedule({.restore_seconds = 0.1, .total_steps = 2000, .epoch_steps = 45});
  EXPECT_TRUE(Train(schedule, 0, 2000, Always(0.0005), Always(0.1)).checkpoints.empty());
}

TEST(RecordSchedule, OnesThatOthersAskForCount) {
  RecordSchedule schedule({.restore_seconds = 0.1, .total_steps = 10'000, .epoch_steps = 10});
  for (int64_t done = 1; done <= 10'000; ++done) {
    schedule.StepDone(done, 0.01);
    if (done % 10 == 0) schedule.Written(done, 0.1);  // more than the budget
    EXPECT_EQ(schedule.Due(kNotice), 0) << done;
  }
}

TEST(RecordSchedule, WhoCouldNotBeToldIsNotToldAgainAtOnce) {
  RecordSchedule schedule({.restore_seconds = 1, .total_steps = 10'000});
  int64_t done = 0;
  const auto until_due = [&] {
    int64_t steps = 0;
    do {
      schedule.StepDone(++done, 0.1);
      ++steps;
    } while (schedule.Due(kNotice) == 0);
    return steps;
  };
  until_due();
  schedule.Asked(done + 1);
  schedule.NotAsked();
  EXPECT_NEAR(static_cast<double>(until_due()), 20, 2) << "a five hundredth of all steps";
}

TEST(RecordSchedule, AFastCheckpointIsThereBeforeItIsKnownThatAllWereTold) {
  RecordSchedule schedule({.restore_seconds = 1, .total_steps = 10'000, .epoch_steps = 100});
  int64_t at = 0;
  for (int64_t done = 1; at == 0; ++done) {
    schedule.StepDone(done, 0.1);
    at = schedule.Due(kNotice);
  }
  schedule.Asked(at);
  schedule.Written(at, 0.1);
  schedule.Asked(at);
  for (int64_t done = at + 1; done < at + 300; ++done) {
    schedule.StepDone(done, 0.1);
    if (schedule.Due(kNotice) > 0) return;
  }
  ADD_FAILURE() << "waits forever for a checkpoint that is there";
}

TEST(RecordSchedule, AnAttemptThatGoesOnCountsFromItsBegin) {
  RecordSchedule schedule(
      {.restore_seconds = 1, .first_step = 9'000, .total_steps = 10'000, .epoch_steps = 100});
  const Trained trained = Train(schedule, 9'000, 10'000, Always(0.1), Always(0.5));
  ASSERT_FALSE(trained.checkpoints.empty());
  EXPECT_GE(trained.checkpoints[0], 9'100);
  EXPECT_LE(trained.spent, trained.seconds / 15);
}

}  // namespace
}  // namespace espalier
