// Speculation that tunes itself, on models whose steps take a known time by a simulated clock:
// against plain decoding and against every fixed shape, by tokens per simulated second.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "serving/engine/tuning_test_util.h"

namespace espalier {
namespace {

class Tuning : public ::testing::TestWithParam<int> {};

TEST_P(Tuning, IsNeverMuchSlowerThanAnyFixedShapeAtAnyLoad) {
  const Machine machine = Machines()[GetParam()];
  for (const double agreement : {0.0, 0.5, 0.9}) {
    for (const int load : {1, 6, 64}) {
      const Outcome tuned = Serve(machine, agreement, load, Tuned(), "", 0, 8);
      const Outcome plain = Serve(machine, -1, load, {}, "");
      EXPECT_EQ(tuned.answers, plain.answers);
      const auto [best, best_shape] =
          BestFixed(machine, agreement, load,
                    {"1", "1,1", "1,1,1", "1,1,1,1,1,1,1,1", "2,1,1", "4,1", "1,1,3,1,1"});
      std::printf(
          "%-9s agreement %.1f load %2d: plain %8.1f, best fixed %8.1f <%s>, tuned %8.1f, "
          "at first %8.1f\n",
          machine.name, agreement, load, plain.tokens_per_second, best, best_shape.c_str(),
          tuned.tokens_per_second, tuned.at_first);
      // While it learns, drafts get the benefit of the doubt.
      EXPECT_GT(tuned.at_first, 0.8 * plain.tokens_per_second);
      EXPECT_GT(tuned.tokens_per_second, 0.97 * plain.tokens_per_second);
      EXPECT_GT(tuned.tokens_per_second, 0.97 * best) << "best: " << best_shape;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, Tuning, ::testing::Range(0, 4));

// Answers without repetitions, of few different tokens: matches abound, and say nothing.
TEST(TunedEngine, NgramDraftsThatFindNothingCostHardlyAnything) {
  EngineOptions with = Tuned();
  with.speculation.ngram = {.depth = 6, .history_tokens = 0};  // every round has the same answers
  for (const Machine& machine : Machines()) {
    for (const double agreement : {-1.0, 0.9}) {
      for (const int load : {1, 6, 64}) {
        const Outcome plain =
            Serve(machine, agreement, load, agreement < 0 ? EngineOptions() : Tuned(), "", 0, 8);
        const Outcome looked = Serve(machine, agreement, load, with, "", 0, 8);
        EXPECT_EQ(looked.answers, plain.answers);
        std::printf("%-9s agreement %4.1f load %2d: without %8.1f, with n-gram drafts %8.1f\n",
                    machine.name, agreement, load, plain.tokens_per_second,
                    looked.tokens_per_second);
        EXPECT_GT(looked.second_quarter, 0.95 * plain.second_quarter)
            << machine.name << ", agreement " << agreement << ", load " << load;
        EXPECT_GT(looked.tokens_per_second, 0.97 * plain.tokens_per_second)
            << machine.name << ", agreement " << agreement << ", load " << load;
      }
    }
  }
}

// What an SSM says where an n-gram draft knows is the same, and the time for it is lost.
TEST(TunedEngine, AnSsmCostsHardlyAnythingWhereNgramDraftsKnow) {
  EngineOptions options = Tuned();
  options.speculation.ngram = {.depth = 6, .history_tokens = 0};
  for (const Machine& machine : Machines()) {
    for (const int load : {1, 2, 6, 64}) {
      const Outcome alone = Serve(machine, -1, load, options, "", 0, 8, Circling());
      const Outcome both = Serve(machine, 0.9, load, options, "", 0, 8, Circling());
      EXPECT_EQ(both.answers, alone.answers);
      std::printf(
          "%-9s load %2d: n-gram drafts alone %8.1f, with an SSM %8.1f; at first %8.1f, %8.1f\n",
          machine.name, load, alone.tokens_per_second, both.tokens_per_second, alone.second_quarter,
          both.second_quarter);
      EXPECT_GT(both.second_quarter, 0.94 * alone.second_quarter)
          << machine.name << ", load " << load;
      EXPECT_GT(both.tokens_per_second, 0.95 * alone.tokens_per_second)
          << machine.name << ", load " << load;
    }
  }
}

// Steps are so long that an SSM repays even where an n-gram draft is likely to know the next token.
TEST(TunedEngine, AnSsmIsAskedBesideNgramDraftsWhereStepsAreLong) {
  const Machine machine = {"streams", Linear(60, 0.6), Linear(0.15, 0.01)};
  EngineOptions fixed, tuned = Tuned();
  fixed.speculation.ngram = tuned.speculation.ngram = {.depth = 6, .history_tokens = 0};
  for (const int load : {1, 4}) {
    Fixed best = {0, ""};
    for (const char* shape : {"1,1", "1,1,1,1", "1,1,1,1,1,1,1,1"}) {
      const double rate =
          Serve(machine, 0.9, load, fixed, shape, 0, 8, Circling()).tokens_per_second;
      if (rate > best.rate) best = {rate, shape};
    }
    const Outcome both = Serve(machine, 0.9, load, tuned, "", 0, 8, Circling());
    std::printf("load %d: tuned %.1f, best fixed <%s> beside n-gram drafts %.1f: %.3f\n", load,
                both.tokens_per_second, best.shape.c_str(), best.rate,
                both.tokens_per_second / best.rate);
    EXPECT_GT(both.tokens_per_second, 0.94 * best.rate) << load;
  }
}

// Sizes that calibration found dear are not run, and nothing would be learned of them.
TEST(TunedEngine, SizesThatWereTimedInABadMomentAreFoundAgain) {
  EngineOptions options = Tuned();
  options.speculation.ngram = {.depth = 6, .history_tokens = 0};
  const Cost cost = Linear(2, 0.09);
  for (const auto& [load, least] : {std::pair(16, 40), std::pair(4, 20)}) {
    const auto rate = [&, load = load, least = least](double dearer) {
      int steps = 0;
      const Machine machine = {"bad moment", [&](int rows) {
                                 const bool calibrates = ++steps < 150;
                                 return cost(rows) * (calibrates && rows > least ? dearer : 1);
                               }};
      return Serve(machine, -1, load, options, "", 0, 40, Circling()).tokens_per_second;
    };
    const double good = rate(1);
    for (const double dearer : {1.25, 1.7, 2.5}) {
      const double bad = rate(dearer);
      std::printf(
          "load %2d, calibrated in a moment %.2f times as slow %.1f, in a good one %.1f: %.3f\n",
          load, dearer, bad, good, bad / good);
      EXPECT_GT(bad, 0.94 * good) << load << ", " << dearer;
    }
  }
}

// The same for the sizes of SSM drafts.
TEST(TunedEngine, SizesOfDraftsThatWereTimedInABadMomentAreFoundAgain) {
  const Cost cost = Linear(2, 0.09), ssm = Linear(0.06, 0.01);
  for (const double agreement : {0.6, 0.9}) {
    for (const auto& [load, least] : {std::pair(1, 3), std::pair(4, 8), std::pair(16, 24)}) {
      const auto rate = [&, load = load, least = least](double dearer) {
        int steps = 0;
        const Machine machine = {"bad moment",
                                 [&](int rows) {
                                   const bool calibrates = ++steps < 150;
                                   return cost(rows) * (calibrates && rows > least ? dearer : 1);
                                 },
                                 ssm};
        return Serve(machine, agreement, load, Tuned(), "", 0, 40).tokens_per_second;
      };
      const double good = rate(1);
      for (const double dearer : {1.25, 1.7, 2.5}) {
        const double bad = rate(dearer);
        std::printf(
            "agreement %.1f load %2d, calibrated in a moment %.2f times as slow %.1f, in a "
            "good one %.1f: %.3f\n",
            agreement, load, dearer, bad, good, bad / good);
        EXPECT_GT(bad, 0.92 * good) << load << ", " << dearer;
      }
    }
  }
}

// Who runs plain steps now and then, to compare, sees the slow ones that come first.
TEST(TunedEngine, PlainStepsThatAreSlowAfterDraftsAreNoReasonToDraftMore) {
  for (const int load : {1, 2, 4}) {
    int since = 0;  // steps since the SSM ran
    const Cost llm = Linear(0.2, 0.06), ssm = Linear(0.03, 0.005);
    const Machine machine = {"cold",
                             [&](int rows) {
                               const int nth = since++;
                               return llm(rows) * (nth == 1 ? 1.6 : nth == 2 ? 1.3 : 1);
                             },
                             [&](int rows) {
                               since = 0;
                               return ssm(rows);
                             }};
    const Fixed best = BestFixed(machine, 0.6, load, {"1", "1,1", "1,1,1", "1,1,1,1"});
    const Outcome tuned = Serve(machine, 0.6, load, Tuned(), "", 0, 24);
    std::printf("cold load %d: tuned %.1f, best fixed <%s> %.1f: %.3f\n", load,
                tuned.tokens_per_second, best.shape.c_str(), best.rate,
                tuned.tokens_per_second / best.rate);
    EXPECT_GT(tuned.tokens_per_second, 0.95 * best.rate) << load;
  }
}

TEST(TunedEngine, AnSsmThatIsNoHelpIsHardlyEverRun) {
  const Machine machine = Machines()[1];
  const Outcome tuned = Serve(machine, 0, 8, Tuned(), "");
  EXPECT_LT(tuned.statistics.ssm_batches, tuned.statistics.llm_batches / 5);
  EXPECT_GT(tuned.statistics.speculation.tuned_off, tuned.statistics.steps * 8 / 10);
}

TEST(TunedEngine, SampledAnswersAreThoseOfPlainDecodingWhateverIsDrafted) {
  for (const Machine& machine : Machines()) {
    const Outcome tuned = Serve(machine, 0.8, 16, Tuned(), "", 1.0);
    EngineOptions plain;
    plain.speculation.sampled = SampledDrafting::kCoupled;
    EXPECT_EQ(tuned.answers, Serve(machine, -1, 16, plain, "", 1.0).answers);
    if (std::string(machine.name) != "roofline") continue;
    EXPECT_GT(tuned.statistics.accepted_tokens, tuned.statistics.generated_tokens / 3);
  }
}

// Where both models draw alike, drafts are worth as much as for greedy requests. What was learned
// of those is not what counts here: there are none.
TEST(TunedEngine, SampledRequestsAreDraftedForByWhatWasLearnedOfThem) {
  for (const Machine& machine : Machines()) {
    const Outcome greedy = Serve(machine, 0.97, 4, Tuned(), "", 0, 4);
    const Outcome sampled = Serve(machine, 0.97, 4, Tuned(), "", 0.8, 4);
    EXPECT_GT(sampled.tokens_per_second, 0.95 * greedy.tokens_per_second) << machine.name;
  }
}

// Of requests of which only the distribution matters.
TEST(TunedEngine, SampledAnswersAreNeverMuchSlowerThanWithDrawsOfAnyFixedShape) {
  constexpr uint64_t kSeeds = 4;
  EngineOptions options = Tuned();
  options.speculation.sampled = SampledDrafting::kCoupledIfSeeded;
  EngineOptions fixed;
  fixed.speculation.sampled = SampledDrafting::kWithoutReplacement;
  for (const Machine& machine : Machines()) {
    for (const double agreement : {0.5, 0.9}) {
      for (const int load : {1, 6}) {
        double tuned = 0, fixed_best = 0;
        std::string shapes;
        // What is drawn is luck.
        for (uint64_t seed = 0; seed < kSeeds; ++seed) {
          tuned += Serve(machine, agreement, load, options, "", 1.0, 8, Llm(), seed * load)
                       .tokens_per_second;
          const Fixed best = BestFixed(machine, agreement, load,
                                       {"1", "1,1", "1,1,1", "1,1,1,1,1,1", "2,1,1", "4,1"}, fixed,
                                       1.0, seed * load);
          fixed_best += best.rate;
          shapes += "<" + best.shape + ">";
        }
        std::printf("%-9s agreement %.1f load %2d: best fixed %8.1f %s, tuned %8.1f\n",
                    machine.name, agreement, load, fixed_best / kSeeds, shapes.c_str(),
                    tuned / kSeeds);
        EXPECT_GT(tuned, (load == 1 ? 0.96 : 0.9) * fixed_best)
            << machine.name << ", agreement " << agreement << ", load " << load
            << ", best: " << shapes;
      }
    }
  }
}

// The text changes its nature in the middle: the SSM is right from some length on.
TEST(TunedEngine, NoticesThatAnSsmHasBecomeGoodThoughItWasOff) {
  RunnerLimits limits = FakeModelRunner::LargeLimits(kVocabulary);
  limits.max_positions = 4096;
  limits.kv_slots = 8192;
  FakeModelRunner llm(limits, Llm());
  FakeModelRunner ssm(limits, [](absl::Span<const int> path) {
    return path.size() > 1500 ? Llm()(path) : DisagreeingModel(Llm())(path);
  });
  double clock = 0;
  SimulatedLatencyRunner costed_llm(&llm, &clock, Roofline(10, 0.25));
  SimulatedLatencyRunner costed_ssm(&ssm, &clock, Roofline(1, 0.01));
  LetterTokenizer tokenizer(kVocabulary);
  EngineOptions options = Tuned();
  options.seconds = [&] { return clock; };
  const auto engine = *Engine::Create(&costed_llm, {&costed_ssm}, &tokenizer, options);
  ASSERT_TRUE(engine->Submit({1, 2, 3}, {.max_tokens = 3500}).ok());
  EngineStatistics middle;
  double until_middle = 0;
  const double start = clock;
  while (!engine->idle()) {
    ASSERT_TRUE(engine->Step().ok());
    if (engine->statistics().generated_tokens < 1500) {
      middle = engine->statistics();
      until_middle = clock - start;
    }
  }
  // At first plain steps, with at most the promised share of trials (and what it takes to learn).
  EXPECT_LT(until_middle, 1.03 * 0.010 * static_cast<double>(middle.generated_tokens));
  EXPECT_GE(middle.speculation.trials, 2);
  EXPECT_GT(engine->statistics().accepted_tokens, 300);
}

TEST(TunedEngine, AnSsmsSmallPoolHoldsUpNoRequest) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  RunnerLimits small = FakeModelRunner::LargeLimits(kVocabulary);
  small.kv_slots = 60;
  harness.AddSsm(Ssm(0.9), small);
  EngineOptions options = Tuned();
  options.seconds = [&] {
    return static_cast<double>(harness.llm().steps()) +
           0.02 * static_cast<double>(harness.ssm(0).steps());
  };
  ASSERT_TRUE(harness.Start(options).ok());
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) {
    ids.push_back(*harness.engine().Submit(std::vector<int>(20, i), {.max_tokens = 60}));
  }
  harness.RunToEnd();
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(harness.answer(ids[i]).tokens,
              GreedyContinuation(Llm(), std::vector<int>(20, i), 60));
  }
  const EngineStatistics statistics = harness.engine().statistics();
  EXPECT_EQ(statistics.preemptions, 0);
  EXPECT_TRUE(statistics.speculation.ssm_status[0].ok());
  EXPECT_GT(statistics.accepted_tokens, 0);  // there is room to draft for one or two
}

// The estimates see the models' steps. Here each of the SSM's is followed by time of the host that
// they do not see, and drafting, which seems to pay, does not.
TEST(TunedEngine, DraftsThatCostMoreThanTheirStepsAreHeldBackOnceThatIsSeen) {
  RunnerLimits limits = FakeModelRunner::LargeLimits(kVocabulary);
  limits.max_positions = 8192;
  limits.kv_slots = 16384;
  limits.max_context_slots = 16384;
  constexpr double kStep = 0.010, kHidden = 0.030;
  FakeModelRunner llm(limits, Llm()), ssm(limits, Ssm(0.9));
  double clock = 0, owed = 0;
  int looked = 0;
  SimulatedLatencyRunner costed_llm(&llm, &clock, [](int) { return kStep; });
  SimulatedLatencyRunner costed_ssm(&ssm, &clock, [&](int) {
    owed += kHidden;
    looked = 0;
    return 0.0004;
  });
  LetterTokenizer tokenizer(kVocabulary);
  EngineOptions options = Tuned();
  options.speculation.calibration_seconds = 0;
  options.seconds = [&] {
    // First at the end of the SSM's step, then at what follows.
    if (owed > 0 && ++looked > 1) clock += std::exchange(owed, 0);
    return clock;
  };
  const auto engine = *Engine::Create(&costed_llm, {&costed_ssm}, &tokenizer, options);
  constexpr int kTokens = 6000;
  ASSERT_TRUE(engine->Submit({1, 2, 3}, {.max_tokens = kTokens}).ok());
  while (!engine->idle()) ASSERT_TRUE(engine->Step().ok());
  const EngineStatistics statistics = engine->statistics();
  EXPECT_GT(statistics.accepted_tokens, 0);
  EXPECT_GT(statistics.speculation.withheld, statistics.steps / 2);
  EXPECT_LT(clock, kTokens * kStep / 0.95);
}

TEST(TunedEngine, NeedsAClock) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  EngineOptions options = Tuned();
  EXPECT_THAT(std::string(harness.Start(options).message()), ::testing::HasSubstr("clock"));
}

}  // namespace
}  // namespace espalier
