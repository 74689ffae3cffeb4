#include "server/jobs/validation_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace espalier {
namespace {

v1::StepReport After(int64_t step, double loss, double accuracy = 0) {
  v1::StepReport report;
  report.set_step(step);
  (*report.mutable_values())["val_loss"] = loss;
  (*report.mutable_values())["val_accuracy"] = accuracy;
  return report;
}

v1::EarlyStopping Patience(int64_t patience) {
  v1::EarlyStopping rule;
  rule.set_mode(v1::EarlyStopping::MIN);
  rule.set_patience(patience);
  return rule;
}

// Adds losses of steps 9, 19, ...; returns the index of the one after which training stops, or -1.
int StopAt(ValidationHistory* history, const std::vector<double>& losses) {
  for (size_t i = 0; i < losses.size(); ++i) {
    history->Add(After(10 * static_cast<int64_t>(i) + 9, losses[i], -losses[i]));
    if (history->stop()) return static_cast<int>(i);
  }
  return -1;
}

TEST(ValidationHistory, StopsAfterSoManyValidationsInARowWithoutImprovement) {
  ValidationHistory history(Patience(2));
  EXPECT_EQ(StopAt(&history, {5, 4, 4.5, 3, 3.5, 3.2, 1}), 5);
  EXPECT_EQ(history.best_steps(), 40);
  EXPECT_EQ(history.best()->values().at("val_loss"), 3);
  EXPECT_EQ(history.StopReason(),
            "val_loss has not improved in 2 validations since the one after 40 steps");
}

TEST(ValidationHistory, WithoutPatienceOnlyTheBestIsKnown) {
  ValidationHistory history;
  EXPECT_EQ(history.best(), nullptr);
  EXPECT_EQ(history.best_steps(), 0);
  EXPECT_EQ(StopAt(&history, {5, 4, 6, 7, 8, 9}), -1);
  EXPECT_EQ(history.best_steps(), 20);
}

TEST(ValidationHistory, AnAccuracyIsBestWhereLargest) {
  v1::EarlyStopping rule = Patience(1);
  rule.set_monitor("val_accuracy");
  rule.set_mode(v1::EarlyStopping::MAX);
  ValidationHistory history(rule);
  EXPECT_EQ(StopAt(&history, {5, 4, 4, 3}), 2) << "as good as the best is no improvement";
  EXPECT_EQ(history.best_steps(), 20);
}

TEST(ValidationHistory, SmallChangesAreNoImprovement) {
  v1::EarlyStopping rule = Patience(2);
  rule.set_min_delta(0.5);
  ValidationHistory history(rule);
  EXPECT_EQ(StopAt(&history, {5, 4.8, 4.6, 1}), 2);
  EXPECT_EQ(history.best_steps(), 10);
}

TEST(ValidationHistory, PatienceRunsOutBeforeTheBaselineIsBeaten) {
  v1::EarlyStopping rule = Patience(3);
  rule.set_baseline(2);
  ValidationHistory improving(rule);
  EXPECT_EQ(StopAt(&improving, {6, 5, 4, 4.5, 1}), 3) << "it improves, but not below 2";
  ValidationHistory beaten(rule);
  EXPECT_EQ(StopAt(&beaten, {6, 5, 1.5, 4, 4, 4}), 5);
}

TEST(ValidationHistory, NaNNeverImproves) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ValidationHistory history(Patience(2));
  EXPECT_EQ(StopAt(&history, {nan, 4, nan, nan, 1}), 3);
  EXPECT_EQ(history.best_steps(), 20);
  ValidationHistory all(Patience(2));
  EXPECT_EQ(StopAt(&all, {nan, nan}), 1);
  EXPECT_EQ(all.best(), nullptr);
}

TEST(ValidationHistory, AfterARollbackItIsAsIfTheLaterOnesHadNotBeen) {
  ValidationHistory history(Patience(2));
  ASSERT_EQ(StopAt(&history, {5, 4, 3, 6, 7}), 4);
  history.DropFrom(29);  // a checkpoint after 29 steps: that after step 29 is to come again
  EXPECT_EQ(history.reports().size(), 2u);
  EXPECT_EQ(history.best_steps(), 20);
  EXPECT_FALSE(history.stop());
  EXPECT_TRUE(history.HasStep(19));
  history.Add(After(29, 3));
  history.Add(After(39, 6));
  EXPECT_FALSE(history.stop());
  history.Add(After(49, 7));
  EXPECT_TRUE(history.stop());
  history.DropFrom(50);
  EXPECT_TRUE(history.stop());
}

}  // namespace
}  // namespace espalier
