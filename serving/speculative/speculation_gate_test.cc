// Whether drafting pays, by measured steps.
#include "serving/speculative/speculation_gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <utility>

namespace espalier {
namespace {

struct Arm {
  double tokens, seconds;
};

struct Outcome {
  double drafted = 0;  // share of the steps
  double lost = 0;     // share of the time, against the better arm
};

// Runs steps of one load on a machine with these arms. `gain`: as estimated. `pace(i)`: what slows
// step i.
Outcome RunSteps(
    SpeculationGate& gate, Arm with, Arm without, int steps, double gain,
    const std::function<double(int)>& pace = [](int) { return 1.0; }, int load = 4) {
  const double best = std::max(with.tokens / with.seconds, without.tokens / without.seconds);
  double drafted = 0, seconds = 0, useful = 0;
  for (int i = 0; i < steps; ++i) {
    const bool drafts = gate.ShouldDraft(load, gain, without.seconds, 0);
    const Arm& arm = drafts ? with : without;
    gate.Observe(
        load, {.drafted = drafts, .tokens = arm.tokens * load, .seconds = arm.seconds * pace(i)});
    drafted += drafts;
    seconds += arm.seconds;
    useful += arm.tokens / best;
  }
  return {drafted / steps, 1 - useful / seconds};
}

TEST(SpeculationGate, DraftingThatLosesCostsAtMostAHundredthOfTheTime) {
  for (const double gain : {0.7, 1.0, 1.5}) {
    for (const double slower : {1.1, 2.0, 8.0}) {
      SpeculationGate gate;
      const Outcome outcome = RunSteps(gate, {2, 2 * slower}, {1, 1}, 100000, gain);
      EXPECT_GT(outcome.drafted, 0);
      EXPECT_LT(outcome.lost, 0.01) << gain << ", " << slower;
    }
  }
}

TEST(SpeculationGate, DraftingThatWinsIsFoundWhateverWasEstimated) {
  for (const double gain : {0.7, 1.0, 2.0}) {
    for (const double faster : {1.2, 2.0}) {
      SpeculationGate gate;
      RunSteps(gate, {2, 2 / faster}, {1, 1}, 20000, gain);
      EXPECT_GT(RunSteps(gate, {2, 2 / faster}, {1, 1}, 20000, gain).drafted, 0.97)
          << gain << ", " << faster;
    }
  }
}

TEST(SpeculationGate, TheChoiceFollowsTheText) {
  SpeculationGate gate;
  RunSteps(gate, {3, 1.5}, {1, 1}, 5000, 2);
  EXPECT_LT(RunSteps(gate, {1.1, 1.5}, {1, 1}, 5000, 0.75).drafted, 0.05);
  EXPECT_GT(RunSteps(gate, {3, 1.5}, {1, 1}, 5000, 2).drafted, 0.95);
}

TEST(SpeculationGate, InterruptionsAndNoiseStopNoDrafting) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> factor(0.7, 1.3);
  SpeculationGate gate;
  const auto noisy = [&](int i) { return (i % 20 == 0 ? 100 : 1) * factor(random); };
  RunSteps(gate, {3, 1.5}, {1, 1}, 2000, 2, noisy);
  EXPECT_GT(RunSteps(gate, {3, 1.5}, {1, 1}, 10000, 2, noisy).drafted, 0.9);
}

TEST(SpeculationGate, AMachineThatIsSlowForSecondsChangesNoDecision) {
  for (const int spell : {10, 100, 1000}) {
    const auto pace = [&](int i) { return i / spell % 2 == 0 ? 1 : 1.4; };
    SpeculationGate wins, loses;
    EXPECT_GT(RunSteps(wins, {2, 1.5}, {1, 1}, 40000, 1.33, pace).drafted, 0.95) << spell;
    EXPECT_LT(RunSteps(loses, {2, 2.6}, {1, 1}, 40000, 0.77, pace).drafted, 0.05) << spell;
  }
}

TEST(SpeculationGate, EachLoadIsJudgedByItself) {
  SpeculationGate gate;
  const auto alike = [](int) { return 1.0; };
  RunSteps(gate, {3, 1.5}, {1, 1}, 5000, 1, alike, 1);
  RunSteps(gate, {1, 1.5}, {1, 1}, 5000, 1, alike, 32);
  EXPECT_GT(RunSteps(gate, {3, 1.5}, {1, 1}, 1000, 1, alike, 1).drafted, 0.9);
  EXPECT_LT(RunSteps(gate, {1, 1.5}, {1, 1}, 1000, 1, alike, 32).drafted, 0.1);
}

// The first steps of a trial are slow and say nothing.
TEST(SpeculationGate, ColdStepsOfATrialAreNotCompared) {
  SpeculationGate gate;
  int since = 0, drafted = 0;
  bool last = false;
  for (int i = 0; i < 20000; ++i) {
    const bool drafts = gate.ShouldDraft(1, 1.1, 1, 0);
    since = drafts == last ? since + 1 : 0;
    last = drafts;
    const double cold = since == 0 ? 3 : since == 1 ? 2 : 1;
    gate.Observe(1,
                 {.drafted = drafts, .tokens = drafts ? 1.4 : 1.5, .seconds = drafts ? 1.0 : cold});
    drafted += drafts;
  }
  EXPECT_LT(drafted, 4000);
}

// Steps that only prefill the SSM are no part of the comparison, and prefill is paid for by credit.
TEST(SpeculationGate, PrefillIsPaidFor) {
  const auto trials = [](double prefill) {
    SpeculationGate gate;
    bool last = false;
    for (int i = 0; i < 20000; ++i) {
      const bool drafts = gate.ShouldDraft(1, 0.9, 1, prefill);
      const bool prefills = drafts && !std::exchange(last, drafts);
      last = drafts;
      gate.Observe(1, {.drafted = drafts,
                       .tokens = 1,
                       .seconds = (drafts ? 1.2 : 1.0) + (prefills ? prefill : 0),
                       .settling = prefills});
    }
    return gate.trials();
  };
  EXPECT_GT(trials(0), 15);
  EXPECT_LT(trials(20), trials(0) / 2);
  EXPECT_GT(trials(20), 2);
  SpeculationGate gate;
  int settling = 0, drafted = 0;
  for (int i = 0; i < 20000; ++i) {
    const bool drafts = gate.ShouldDraft(1, 1.2, 1, 5);
    settling = drafts ? settling + 1 : 0;
    const bool prefills = drafts && settling <= 3;
    gate.Observe(1, {.drafted = drafts && !prefills,
                     .tokens = drafts && !prefills ? 3.0 : 1.0,
                     .seconds = prefills ? 3
                                : drafts ? 1.5
                                         : 1,
                     .settling = prefills});
    drafted += drafts;
  }
  EXPECT_GT(drafted, 19000);
}

}  // namespace
}  // namespace espalier
