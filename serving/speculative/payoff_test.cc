// Whether drafting pays, by measured steps.
#include "serving/speculative/payoff.h"

#include <gtest/gtest.h>

#include <random>

namespace espalier {
namespace {

struct Arm {
  double tokens, seconds;
};

// Steps of one load by a machine with these arms; the share of steps that drafted.
double Drafted(Payoff& payoff, int load, Arm with, Arm without, int steps, double noise = 0) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> factor(1 - noise, 1 + noise);
  int drafted = 0;
  for (int i = 0; i < steps; ++i) {
    const bool drafts = !payoff.Withholds(load);
    drafted += drafts;
    const Arm& arm = drafts ? with : without;
    payoff.Observe(load, drafts, static_cast<int>(arm.tokens * load), arm.seconds * factor(random));
  }
  return static_cast<double>(drafted) / steps;
}

TEST(Payoff, WhatYieldsLessThanPlainStepsIsHeldBackEverMoreRarelyTried) {
  Payoff payoff;
  EXPECT_LT(Drafted(payoff, 4, {2, 2.2}, {1, 1}, 2000), 0.05);
  EXPECT_LT(Drafted(payoff, 4, {2, 2.2}, {1, 1}, 20000), 0.003);
}

TEST(Payoff, WhatYieldsMoreGoesOnButForAFewComparisons) {
  Payoff payoff;
  EXPECT_GT(Drafted(payoff, 4, {2, 1.5}, {1, 1}, 4000, 0.3), 0.98);
}

TEST(Payoff, AMachineThatIsInterruptedNowAndThenHoldsNothingBack) {
  Payoff payoff;
  for (int i = 0; i < 4000; ++i) {
    const bool drafts = !payoff.Withholds(1);
    const double seconds = (drafts ? 1.5 : 1.0) + (drafts && i % 20 == 0 ? 100 : 0);
    payoff.Observe(1, drafts, drafts ? 3 : 1, seconds);
  }
  EXPECT_FALSE(payoff.Withholds(1) && payoff.Withholds(1) && payoff.Withholds(1) &&
               payoff.Withholds(1));
}

TEST(Payoff, EachLoadIsJudgedByItself) {
  Payoff payoff;
  EXPECT_GT(Drafted(payoff, 1, {3, 1.2}, {1, 1}, 1000), 0.97);
  EXPECT_LT(Drafted(payoff, 32, {3, 4}, {1, 1}, 1000), 0.1);
  EXPECT_GT(Drafted(payoff, 1, {3, 1.2}, {1, 1}, 1000), 0.97);
}

TEST(Payoff, IsTakenUpAgainWhenItPaysAgain) {
  Payoff payoff;
  Drafted(payoff, 2, {1, 1.3}, {1, 1}, 600);
  EXPECT_GT(Drafted(payoff, 2, {3, 1.3}, {1, 1}, 8000), 0.8);
}

}  // namespace
}  // namespace espalier
