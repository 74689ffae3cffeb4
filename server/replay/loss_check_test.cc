#include "server/replay/loss_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace espalier {
namespace {

using ::testing::HasSubstr;

v1::RecordedAttempt Computed(int64_t first_step = 0) {
  v1::RecordedAttempt attempt;
  attempt.set_first_step(first_step);
  attempt.set_program_version("1.0");
  attempt.mutable_plan()->set_graph_fingerprint("f");
  for (int r = 0; r < 2; ++r) {
    v1::RecordedAttempt::Rank& rank = *attempt.add_ranks();
    rank.set_device_model("cpu");
    rank.set_instruction_set("avx2");
    rank.set_threads(2);
    rank.set_program_version("1.0");
  }
  return attempt;
}

const std::vector<RecordedLoss> kLosses = {{0, 4.0}, {1, 3.0}, {2, 2.0}, {3, 1.5}};

TEST(LossCheck, TheSameBitsPassAndOneUlpDoesNot) {
  LossCheck check(kLosses, {Computed()}, 0, Computed(), 1e-3);
  EXPECT_EQ(check.Check(0, 4.0), std::nullopt);
  const auto differs = check.Check(1, std::nextafter(3.0, 4.0));
  ASSERT_TRUE(differs.has_value());
  EXPECT_EQ(differs->step(), 1);
  EXPECT_EQ(differs->recorded(), 3.0);
  EXPECT_GT(differs->replayed(), 3.0);
  EXPECT_TRUE(check.comparison().bits());
  EXPECT_EQ(check.comparison().compared(), 2);
}

TEST(LossCheck, WhatDecidesTheBitsIsNamedAndThenATolerenceHolds) {
  const auto change = [](auto how) {
    v1::RecordedAttempt replayed = Computed();
    how(replayed);
    return replayed;
  };
  const std::vector<std::pair<v1::RecordedAttempt, std::string>> others = {
      {change([](auto& a) { a.set_program_version("1.1"); }), "version 1.0, the replay of 1.1"},
      {change([](auto& a) { a.mutable_ranks()->RemoveLast(); }), "2 ranks, the replay of 1"},
      {change([](auto& a) { a.mutable_plan()->set_graph_fingerprint("g"); }), "another plan"},
      {change([](auto& a) { a.mutable_ranks(1)->set_instruction_set(""); }),
       "rank 1: the recording is of instruction set avx2, the replay of unknown"},
      {change([](auto& a) { a.mutable_ranks(0)->set_threads(4); }), "threads 2, the replay of 4"},
      {change([](auto& a) { a.mutable_ranks(0)->set_device_model("x"); }), "device cpu"},
      {change([](auto& a) { a.mutable_ranks(0)->set_program_version("1.1"); }), "rank 0: "},
  };
  for (const auto& [replayed, why] : others) {
    LossCheck check(kLosses, {Computed()}, 0, replayed, 1e-3);
    EXPECT_FALSE(check.comparison().bits());
    EXPECT_THAT(check.comparison().reason(), HasSubstr(why));
    EXPECT_EQ(check.Check(0, 4.0 * (1 + 9e-4)), std::nullopt);
    EXPECT_NEAR(check.comparison().largest(), 9e-4, 1e-6);
    const auto differs = check.Check(1, 3.0 * (1 + 2e-3));
    ASSERT_TRUE(differs.has_value());
    EXPECT_THAT(differs->cause(), HasSubstr(why));
  }
}

TEST(LossCheck, StepsAfterAnAttemptOnAnotherPlanNeedNotHaveTheBits) {
  v1::RecordedAttempt later = Computed(2);
  later.mutable_plan()->set_graph_fingerprint("g");
  LossCheck check(kLosses, {Computed(), later}, 0, Computed(), 1e-3);
  EXPECT_EQ(check.Check(1, 3.0), std::nullopt);
  EXPECT_TRUE(check.comparison().bits());
  EXPECT_EQ(check.Check(2, std::nextafter(2.0, 3.0)), std::nullopt);
  EXPECT_FALSE(check.comparison().bits());
  // But those from its own checkpoint on do, whatever was before.
  LossCheck own(kLosses, {Computed(), later}, 2, later, 1e-3);
  EXPECT_TRUE(own.comparison().bits());
  EXPECT_TRUE(own.Check(3, std::nextafter(1.5, 2.0)).has_value());
}

TEST(LossCheck, StepsThatAnEarlierTryComparedAreComparedButNotCounted) {
  LossCheck check(kLosses, {Computed()}, 0, Computed(), 1e-3, /*counted_from=*/2);
  for (const RecordedLoss& recorded : kLosses) {
    EXPECT_EQ(check.Check(recorded.step, recorded.loss), std::nullopt);
  }
  EXPECT_EQ(check.comparison().compared(), 2);
  LossCheck wrong(kLosses, {Computed()}, 0, Computed(), 1e-3, /*counted_from=*/2);
  EXPECT_TRUE(wrong.Check(1, std::nextafter(3.0, 4.0)).has_value());
}

TEST(LossCheck, TwoTriesAreToTheBitOnlyIfBothAre) {
  v1::ReplayComparison exact, within;
  exact.set_bits(true);
  exact.set_tolerance(1e-3);
  exact.set_compared(3);
  within.set_tolerance(1e-2);
  within.set_compared(4);
  within.set_largest(2e-4);
  within.set_reason("another plan");
  for (const v1::ReplayComparison& both : {BothOf(exact, within), BothOf(within, exact)}) {
    EXPECT_FALSE(both.bits());
    EXPECT_EQ(both.compared(), 7);
    EXPECT_EQ(both.largest(), 2e-4);
    EXPECT_EQ(both.tolerance(), 1e-2);
    EXPECT_EQ(both.reason(), "another plan");
  }
  EXPECT_TRUE(BothOf(exact, exact).bits());
  v1::ReplayComparison none = exact;
  none.set_compared(0);
  EXPECT_FALSE(BothOf(none, within).bits());
  EXPECT_EQ(BothOf(within, none).compared(), 4);
  EXPECT_TRUE(BothOf(exact, v1::ReplayComparison()).bits()) << "the second has not begun";
}

TEST(LossCheck, NoNumberEqualsNoNumberOnly) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  v1::RecordedAttempt other = Computed();
  other.set_program_version("1.1");
  LossCheck check({{0, nan}, {1, nan}, {2, 1.0}}, {Computed()}, 0, other, 1e-3);
  EXPECT_EQ(check.Check(0, -nan), std::nullopt);
  EXPECT_TRUE(check.Check(1, 1.0).has_value());
  EXPECT_TRUE(check.Check(2, nan).has_value());
  EXPECT_EQ(check.Check(7, 1.0), std::nullopt) << "no loss was recorded";
}

}  // namespace
}  // namespace espalier
