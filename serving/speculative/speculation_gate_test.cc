// Whether drafting pays, by measured steps.
#include "serving/speculative/speculation_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace espalier {
namespace {

struct Arm {
  double tokens, seconds;
};

// Steps of one load by a machine with these arms; the share of steps that drafted.
double Drafted(SpeculationGate& gate, int load, Arm with, Arm without, int steps,
               double noise = 0) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> factor(1 - noise, 1 + noise);
  int drafted = 0;
  for (int i = 0; i < steps; ++i) {
    const bool drafts = !gate.ShouldSkip(load);
    drafted += drafts;
    const Arm& arm = drafts ? with : without;
    gate.Observe(load, drafts,
                 {.tokens = std::floor(arm.tokens * load),
                  .seconds = arm.seconds * factor(random),
                  .expected = static_cast<double>(load)});
  }
  return static_cast<double>(drafted) / steps;
}

TEST(SpeculationGate, DraftingThatLosesCostsAtMostAHundredthOfTheTime) {
  for (const double slower : {1.02, 1.1, 2.0, 8.0}) {
    SpeculationGate gate;
    const double drafted = Drafted(gate, 4, {2, 2 * slower}, {1, 1}, 100000);
    EXPECT_GT(drafted, 0);
    EXPECT_LT(drafted * (slower - 1) * 2, 0.01) << slower;
  }
}

TEST(SpeculationGate, DraftingThatWinsContinuesWithFewComparisons) {
  SpeculationGate gate;
  EXPECT_GT(Drafted(gate, 4, {2, 1.5}, {1, 1}, 4000, 0.3), 0.98);
}

TEST(SpeculationGate, InterruptedStepsDoNotStopDrafting) {
  SpeculationGate gate;
  for (int i = 0; i < 4000; ++i) {
    const bool drafts = !gate.ShouldSkip(1);
    const double seconds = (drafts ? 1.5 : 1.0) + (drafts && i % 20 == 0 ? 100 : 0);
    gate.Observe(1, drafts, {.tokens = drafts ? 3.0 : 1.0, .seconds = seconds, .expected = 1});
  }
  EXPECT_FALSE(gate.ShouldSkip(1) && gate.ShouldSkip(1) && gate.ShouldSkip(1) &&
               gate.ShouldSkip(1));
}

// What steps cost was learned wrongly at first, and drafts looked much better than they are.
TEST(SpeculationGate, ACorrectedEstimateDoesNotStopDraftingThatPays) {
  SpeculationGate gate;
  const double gain = 1.2;
  int drafted = 0;
  for (int i = 0; i < 3000; ++i) {
    // Plain steps look twice as long as they are, then not any more.
    const double wrong = i < 800 ? 2 : std::max(1.0, 2 - (i - 800) / 100.0);
    const bool drafts = !gate.ShouldSkip(1, gain * wrong);
    if (i >= 800) drafted += drafts;
    gate.Observe(1, drafts,
                 {.tokens = drafts ? 3.0 : 1.0,
                  .seconds = drafts ? 3 / gain : 1,
                  .expected = drafts ? gain : 1 / wrong});
  }
  EXPECT_GT(drafted, 2100);
}

// What a step finds in the caches is what the last one has left there.
TEST(SpeculationGate, WarmupStepsAreNotComparedForLong) {
  for (const double gain : {0.94, 1.06}) {
    SpeculationGate gate;
    int drafted = 0, since = 0;  // the last change
    bool last = false;
    for (int i = 0; i < 20000; ++i) {
      const bool drafts = !gate.ShouldSkip(4, 1.02);
      since = drafts == last ? since + 1 : 0;
      last = drafts;
      drafted += drafts;
      // Of the way that wins.
      const double cold = drafts != (gain > 1) ? 1 : since == 0 ? 1.4 : since == 1 ? 1.12 : 1;
      gate.Observe(4, drafts,
                   {.tokens = drafts ? 6.0 : 4.0,
                    .seconds = cold * (drafts ? 1.5 / gain : 1),
                    .expected = drafts ? 4 * 1.02 : 4});
    }
    if (gain < 1) {
      EXPECT_LT(drafted, 2000) << gain;
    } else {
      EXPECT_GT(drafted, 18000) << gain;
    }
  }
}

// An SSM that takes some steps to catch up with many requests yields nothing in these.
TEST(SpeculationGate, PrefillOnlyStepsDoNotStopDrafting) {
  SpeculationGate gate;
  int behind = 8, drafted = 0;
  for (int i = 0; i < 3000; ++i) {
    const bool drafts = !gate.ShouldSkip(64);
    const bool settling = drafts && behind > 0;
    // New requests come after some plain steps.
    behind = drafts ? std::max(0, behind - 1) : 8;
    drafted += drafts;
    const double yield = drafts && !settling ? 3 : 1;
    gate.Observe(64, drafts,
                 {.tokens = 64 * yield,
                  .seconds = drafts ? (settling ? 1.6 : 2.5) : 1,
                  .expected = 64,
                  .catching_up = settling ? 0.6 : 0,
                  .settling = settling});
  }
  EXPECT_GT(drafted, 2700);
}

TEST(SpeculationGate, EachLoadIsJudgedByItself) {
  SpeculationGate gate;
  EXPECT_GT(Drafted(gate, 1, {3, 1.2}, {1, 1}, 1000), 0.97);
  EXPECT_LT(Drafted(gate, 32, {3, 4}, {1, 1}, 1000), 0.1);
  EXPECT_GT(Drafted(gate, 1, {3, 1.2}, {1, 1}, 1000), 0.97);
}

TEST(SpeculationGate, DraftingResumesWhenItPaysAgain) {
  SpeculationGate gate;
  Drafted(gate, 2, {1, 1.3}, {1, 1}, 600);
  EXPECT_GT(Drafted(gate, 2, {3, 1.3}, {1, 1}, 8000), 0.8);
}

// Neighbours come and go: for some hundreds of steps all is slower.
TEST(SpeculationGate, ASlowPeriodChangesNoDecision) {
  for (const double seconds : {1.5, 2.3}) {
    SpeculationGate gate;
    std::mt19937 random(3);
    double slow = 1, drafting = 0, all = 0;
    for (int i = 0; i < 40000; ++i) {
      if (random() % 300 == 0) slow = 1 + 0.1 * static_cast<double>(random() % 8);
      const bool drafts = !gate.ShouldSkip(4);
      const double took = drafts ? seconds : 1;
      (drafts ? drafting : all) += took;
      gate.Observe(4, drafts,
                   {.tokens = drafts ? 8.0 : 4.0, .seconds = slow * took, .expected = 4});
    }
    all += drafting;
    if (seconds < 2) {
      EXPECT_GT(drafting, 0.97 * all);
    } else {
      EXPECT_LT(drafting, 0.1 * all);
    }
  }
}

// Neighbours that come and go many times a second, and little to be won or lost.
TEST(SpeculationGate, AMachineWithVaryingSpeedChangesNoDecision) {
  for (const double seconds : {1.74, 2.3}) {
    SpeculationGate gate;
    std::mt19937 random(3);
    std::uniform_real_distribution<double> jitter(0.9, 1.1);
    double slow = 1, drafting = 0, all = 0;
    for (int i = 0; i < 40000; ++i) {
      if (random() % 30 == 0) slow = 1 + 0.1 * static_cast<double>(random() % 8);
      const bool drafts = !gate.ShouldSkip(4);
      const double took = drafts ? seconds : 1;
      (drafts ? drafting : all) += took;
      gate.Observe(
          4, drafts,
          {.tokens = drafts ? 8.0 : 4.0, .seconds = slow * jitter(random) * took, .expected = 4});
    }
    all += drafting;
    if (seconds < 2) {
      EXPECT_GT(drafting, 0.95 * all);
    } else {
      EXPECT_LT(drafting, 0.1 * all);
    }
  }
}

// Requests grow, and steps with them: what is compared is how far each arm is from its estimate.
TEST(SpeculationGate, GrowingContextsDoNotStopDrafting) {
  SpeculationGate gate;
  int drafted = 0;
  constexpr int kSteps = 3000;
  for (int i = 0; i < kSteps; ++i) {
    const double slower = 1 + i * 0.003;
    const bool drafts = !gate.ShouldSkip(4, 1.1);
    drafted += drafts;
    gate.Observe(4, drafts,
                 {.tokens = drafts ? 11.0 : 4.0,
                  .seconds = slower * (drafts ? 2.5 : 1),
                  .expected = (drafts ? 4.4 : 4) / slower});
  }
  EXPECT_GT(drafted, 0.97 * kSteps);
}

// A step without tells nothing of the estimate, which may be wrong: a trial does.
TEST(SpeculationGate, ASlightlyTooLowEstimateIsCorrected) {
  SpeculationGate gate;
  int drafted = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool drafts = !gate.ShouldSkip(4, 0.9);
    drafted += drafts;
    gate.Observe(
        4, drafts,
        {.tokens = drafts ? 12.0 : 4.0, .seconds = drafts ? 2.5 : 1, .expected = drafts ? 3.6 : 4});
  }
  EXPECT_GT(drafted, 900);
  EXPECT_TRUE(gate.ShouldSkip(4, 0.5));
}

TEST(SpeculationGate, TrialsWithoutAnExpectedGainCostLittleTime) {
  SpeculationGate gate;
  double plain = 0, trials = 0;
  for (int i = 0; i < 5000; ++i) {
    const bool drafts = !gate.ShouldSkip(4, 0.95, 5);
    (drafts ? trials : plain) += drafts ? 2.5 : 1;
    gate.Observe(
        4, drafts,
        {.tokens = drafts ? 8.0 : 4.0, .seconds = drafts ? 2.5 : 1, .expected = drafts ? 3.8 : 4});
  }
  EXPECT_GT(trials, 0);
  EXPECT_LT(trials * 0.2, 0.01 * plain);
}

// What the SSM has to read of a request before it drafts for it.
TEST(SpeculationGate, PrefillTimeIsSpreadOverLaterSteps) {
  SpeculationGate gate;
  int drafted = 0;
  bool behind = true;
  for (int i = 0; i < 1000; ++i) {
    const bool drafts = !gate.ShouldSkip(1);
    drafted += drafts;
    const double once = drafts && behind ? 8 : 0;
    behind = !drafts;
    gate.Observe(1, drafts,
                 {.tokens = drafts ? 3.0 : 1.0,
                  .seconds = (drafts ? 1.5 : 1) + once,
                  .expected = 1,
                  .catching_up = once});
  }
  EXPECT_GT(drafted, 950);
}

// Few tokens more or less are luck, where the trees said how many to expect.
TEST(SpeculationGate, NoiseAloneDoesNotStopDrafting) {
  SpeculationGate gate;
  std::mt19937 random(5);
  int drafted = 0;
  for (int i = 0; i < 8000; ++i) {
    const bool drafts = !gate.ShouldSkip(1, 1.05);
    drafted += drafts;
    const double lucky = random() % 2 == 0 ? 1 : 5;  // 3 on average
    gate.Observe(1, drafts,
                 {.tokens = drafts ? lucky : 1.0,
                  .seconds = drafts ? 2.8 : 1,
                  .expected = drafts ? 1.05 : 1,
                  .likely = drafts ? 3.0 : 0});
  }
  EXPECT_GT(drafted, 0.97 * 8000);
}

// Where a comparison is a sixth off, four of them are no proof against an estimate that is right.
TEST(SpeculationGate, AFewBadComparisonsDoNotRefuteTheEstimate) {
  double drafted = 0;
  constexpr int kRuns = 20, kSteps = 600;
  for (int run = 0; run < kRuns; ++run) {
    SpeculationGate gate;
    std::mt19937 random(run);
    std::normal_distribution<double> noise(0, 0.15);
    double slow = 1;
    bool before = false;
    for (int i = 0; i < kSteps; ++i) {
      const bool drafts = !gate.ShouldSkip(4, 1.08);
      // As slow as it is by then until it turns again.
      if (drafts != before) slow = std::exp(noise(random));
      before = drafts;
      drafted += drafts;
      gate.Observe(4, drafts,
                   {.tokens = drafts ? 10.0 : 4.0,
                    .seconds = slow * (drafts ? 2.5 / 1.08 : 1),
                    .expected = drafts ? 4.32 : 4});
    }
  }
  EXPECT_GT(drafted, 0.8 * kRuns * kSteps);
}

// While little is learned drafts are worse than they will be: what was lost then says little of
// later.
TEST(SpeculationGate, AnEarlyLossIsRetriedSoon) {
  double drafted = 0;
  constexpr int kRuns = 20, kSteps = 2000;
  for (int run = 0; run < kRuns; ++run) {
    SpeculationGate gate;
    std::mt19937 random(run);
    std::normal_distribution<double> noise(0, 0.1);
    for (int i = 0; i < kSteps; ++i) {
      const bool drafts = !gate.ShouldSkip(16, 1.05);
      drafted += drafts && i >= kSteps / 2;
      const double gain = i < 150 ? 0.85 : 1.08;
      gate.Observe(16, drafts,
                   {.tokens = drafts ? 40.0 : 16.0,
                    .seconds = std::exp(noise(random)) * (drafts ? 2.5 / gain : 1),
                    .expected = drafts ? 16 * 1.05 : 16});
    }
  }
  EXPECT_GT(drafted, 0.9 * kRuns * kSteps / 2);
}

// But what trees promise and do not keep is.
TEST(SpeculationGate, RepeatedLossesRefuteTheEstimate) {
  SpeculationGate gate;
  int drafted = 0;
  for (int i = 0; i < 8000; ++i) {
    const bool drafts = !gate.ShouldSkip(1, 1.3);
    drafted += drafts;
    gate.Observe(1, drafts,
                 {.tokens = drafts ? 2.0 : 1.0,
                  .seconds = drafts ? 2.3 : 1,
                  .expected = drafts ? 1.3 : 1,
                  .likely = drafts ? 3.0 : 0});
  }
  EXPECT_LT(drafted, 800);
}

// Held back for long, it comes back at once when drafts become clearly better.
TEST(SpeculationGate, AHigherEstimateEndsAPause) {
  SpeculationGate gate;
  Drafted(gate, 4, {2, 2.2}, {1, 1}, 20000);
  // A trial may be under way.
  for (int i = 0; i < 64 && !gate.ShouldSkip(4); ++i) Drafted(gate, 4, {2, 2.2}, {1, 1}, 1);
  EXPECT_TRUE(gate.ShouldSkip(4, 1));
  EXPECT_FALSE(gate.ShouldSkip(4, 1.5));
}

// A neighbour that works just while the steps without drafts run makes these look good. That must
// not be believed for long.
TEST(SpeculationGate, OneGoodComparisonIsNotTrustedForLong) {
  for (const double slower : {1.4, 2.0}) {
    SpeculationGate gate;
    bool lucky = true;
    int wasted = 0;
    for (int i = 0; i < 4000; ++i) {
      const bool drafts = !gate.ShouldSkip(1);
      wasted += drafts;
      const double seconds = drafts ? 1.15 : lucky ? slower : 1.0;
      if (i == 40) lucky = false;
      gate.Observe(1, drafts, {.tokens = 1.0, .seconds = seconds, .expected = 1});
    }
    EXPECT_LT(wasted, 600) << slower;
  }
}

}  // namespace
}  // namespace espalier
