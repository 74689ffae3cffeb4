// Greedy speculation equals incremental decoding token for token; the latter is computed here
// without the engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serving/engine/engine_test_util.h"

namespace espalier {
namespace {

using ::testing::ElementsAreArray;

constexpr int kVocabulary = 20;
constexpr int kPrompts = 200;
constexpr int kAnswer = 24;

const FakeModel& Llm() {
  static const FakeModel& model = *new FakeModel(HashModel(1, kVocabulary));
  return model;
}

struct SsmCase {
  const char* name;
  std::vector<FakeModel> models;
};

std::vector<SsmCase> SsmCases() {
  const FakeModel good = AgreeingModel(Llm(), HashModel(2, kVocabulary), 0.8, 3);
  const FakeModel other = AgreeingModel(Llm(), HashModel(4, kVocabulary), 0.6, 5);
  return {{"good", {good}},
          {"random", {HashModel(6, kVocabulary)}},
          {"equal", {Llm()}},
          {"two", {good, other}}};
}

class GreedyIdentity : public ::testing::TestWithParam<const char*> {};

TEST_P(GreedyIdentity, EqualsIncrementalDecoding) {
  const std::vector<std::vector<int>> prompts = RandomPrompts(kPrompts, 30, kVocabulary, 7);
  std::vector<std::vector<int>> expected;
  for (const std::vector<int>& prompt : prompts) {
    expected.push_back(GreedyContinuation(Llm(), prompt, kAnswer));
  }
  for (const SsmCase& ssms : SsmCases()) {
    EngineHarness harness(kVocabulary);
    harness.SetLlm(Llm());
    for (const FakeModel& model : ssms.models) harness.AddSsm(model);
    ASSERT_TRUE(harness.Start({.max_tokens_per_batch = 100}, GetParam()).ok());
    std::vector<RequestId> ids;
    for (const std::vector<int>& prompt : prompts) {
      ids.push_back(*harness.engine().Submit(prompt, {.max_tokens = kAnswer}));
    }
    harness.RunToEnd();
    for (int i = 0; i < kPrompts; ++i) {
      EXPECT_THAT(harness.answer(ids[i]).tokens, ElementsAreArray(expected[i])) << ssms.name;
      EXPECT_EQ(harness.answer(ids[i]).reason, FinishReason::kLength);
    }
    const EngineStatistics statistics = harness.engine().statistics();
    EXPECT_EQ(statistics.generated_tokens, kPrompts * kAnswer);
    EXPECT_LE(harness.llm().largest_batch(), 100);
    if (std::string(ssms.name) != "random") {
      EXPECT_GT(statistics.accepted_tokens, 500);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GreedyIdentity,
                         ::testing::Values("1", "1,1,1,1,1,1,1,1", "3,1,1", "1,1,3,1,1", "2,2,2",
                                           "8"));

TEST(Engine, AnswersAreTheSameWithNoSpeculationAtAll) {
  const std::vector<std::vector<int>> prompts = RandomPrompts(50, 30, kVocabulary, 8);
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  ASSERT_TRUE(harness.Start({}).ok());
  std::vector<RequestId> ids;
  for (const auto& prompt : prompts) {
    ids.push_back(*harness.engine().Submit(prompt, {.max_tokens = kAnswer}));
  }
  harness.RunToEnd();
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_THAT(harness.answer(ids[i]).tokens,
                ElementsAreArray(GreedyContinuation(Llm(), prompts[i], kAnswer)));
    EXPECT_EQ(harness.answer(ids[i]).usage.verification_steps, kAnswer - 1);
    EXPECT_EQ(harness.answer(ids[i]).usage.drafted_tokens, 0);
  }
}

TEST(Engine, AnSsmEqualToTheLlmHasEveryChainAccepted) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  ASSERT_TRUE(harness.Start({}, "1,1,1").ok());
  // One token from the prompt, then four per step.
  const RequestId id = *harness.engine().Submit({1, 2, 3}, {.max_tokens = 1 + 4 * 5});
  harness.RunToEnd();
  const Usage& usage = harness.answer(id).usage;
  EXPECT_EQ(usage.verification_steps, 5);
  EXPECT_EQ(usage.drafted_tokens, 15);
  EXPECT_EQ(usage.accepted_tokens, 15);
  EXPECT_THAT(harness.engine().statistics().accepted_by_depth, ::testing::ElementsAre(5, 5, 5));
}

TEST(Engine, AnAlwaysWrongSsmAddsNoLlmStep) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(DisagreeingModel(Llm()));
  ASSERT_TRUE(harness.Start({}, "1,1,3,1,1").ok());
  const RequestId id = *harness.engine().Submit({1, 2, 3}, {.max_tokens = 20});
  harness.RunToEnd();
  EXPECT_EQ(harness.answer(id).usage.accepted_tokens, 0);
  EXPECT_EQ(harness.answer(id).usage.verification_steps, 19);
  EXPECT_THAT(harness.answer(id).tokens,
              ElementsAreArray(GreedyContinuation(Llm(), {1, 2, 3}, 20)));
}

TEST(Engine, SpeculationCanBeTurnedOffForOneRequest) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  ASSERT_TRUE(harness.Start({}, "1,1,1").ok());
  const RequestId off = *harness.engine().Submit({1, 2}, {.max_tokens = 12, .speculate = false});
  const RequestId on = *harness.engine().Submit({1, 2}, {.max_tokens = 12});
  harness.RunToEnd();
  EXPECT_EQ(harness.answer(off).usage.drafted_tokens, 0);
  EXPECT_GT(harness.answer(on).usage.drafted_tokens, 0);
  EXPECT_EQ(harness.answer(off).tokens, harness.answer(on).tokens);
}

TEST(Engine, SmallRunnerLimitsGiveTheSameTokens) {
  EngineHarness harness(kVocabulary);
  harness.limits().max_rows = 14;
  harness.limits().max_sequences = 2;
  harness.limits().max_context_slots = 64;
  harness.limits().max_ancestor_slots = 9;
  harness.limits().kv_slots = 130;
  harness.SetLlm(Llm());
  harness.AddSsm(AgreeingModel(Llm(), HashModel(2, kVocabulary), 0.8, 3));
  ASSERT_TRUE(harness.Start({}, "1,1,3,1,1").ok());
  const auto prompts = RandomPrompts(40, 30, kVocabulary, 9);
  std::vector<RequestId> ids;
  for (const auto& prompt : prompts) {
    ids.push_back(*harness.engine().Submit(prompt, {.max_tokens = kAnswer}));
  }
  harness.RunToEnd();
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_THAT(harness.answer(ids[i]).tokens,
                ElementsAreArray(GreedyContinuation(Llm(), prompts[i], kAnswer)));
  }
}

TEST(Engine, AnSsmOfAShorterContextStopsDraftingWhereItEnds) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  RunnerLimits narrow = FakeModelRunner::LargeLimits(kVocabulary);
  narrow.max_positions = 20;
  harness.AddSsm(Llm(), narrow);
  harness.AddSsm(HashModel(3, kVocabulary));
  ASSERT_TRUE(harness.Start({}, "1,2,1").ok());
  const RequestId crossing = *harness.engine().Submit({1, 2, 3}, {.max_tokens = 60});
  const std::vector<int> long_prompt(40, 5);
  const RequestId beyond = *harness.engine().Submit(long_prompt, {.max_tokens = 30});
  harness.RunToEnd();
  EXPECT_THAT(harness.answer(crossing).tokens,
              ElementsAreArray(GreedyContinuation(Llm(), {1, 2, 3}, 60)));
  EXPECT_THAT(harness.answer(beyond).tokens,
              ElementsAreArray(GreedyContinuation(Llm(), long_prompt, 30)));
}

TEST(Engine, ASequenceTooLongForAnSsmHoldsNoneOfItsSlots) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  RunnerLimits narrow = FakeModelRunner::LargeLimits(kVocabulary);
  narrow.max_positions = 20;
  harness.AddSsm(Llm(), narrow);
  ASSERT_TRUE(harness.Start({}, "1,1").ok());
  const RequestId id = *harness.engine().Submit({1, 2, 3}, {.max_tokens = 40});
  int longer = 0;
  while (!harness.engine().idle()) {
    ASSERT_TRUE(harness.Step().ok());
    if (harness.answer(id).tokens.size() <= 17) continue;
    ++longer;
    EXPECT_EQ(harness.engine().statistics().ssm_kv[0].used, 0);
  }
  EXPECT_GT(longer, 10);
}

TEST(Engine, SmallKvPoolsOfTheSsmsEndDraftingAndNotTheRequest) {
  for (const double temperature : {0.0, 1.0}) {
    EngineHarness harness(kVocabulary);
    harness.SetLlm(Llm());
    RunnerLimits small = FakeModelRunner::LargeLimits(kVocabulary);
    small.kv_slots = 30;
    harness.AddSsm(Llm(), small);
    harness.AddSsm(HashModel(3, kVocabulary), small);
    ASSERT_TRUE(harness.Start({}, "2,2").ok());
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; ++i) {
      ids.push_back(*harness.engine().Submit(
          {1, 2, i}, {.max_tokens = 50, .sampling = {.temperature = temperature}}));
    }
    harness.RunToEnd();
    for (const RequestId id : ids) {
      EXPECT_EQ(harness.answer(id).tokens.size(), 50u);
      EXPECT_GT(harness.answer(id).usage.accepted_tokens, 0);
    }
  }
}

TEST(Engine, TheAnswerFillsTheContextToTheLastToken) {
  for (const bool speculate : {false, true}) {
    EngineHarness harness(kVocabulary);
    harness.limits().max_positions = 32;
    harness.SetLlm(Llm());
    harness.AddSsm(Llm());
    ASSERT_TRUE(harness.Start({}, "1,1,1").ok());
    const RequestId id = *harness.engine().Submit(std::vector<int>(29, 1),
                                                  {.max_tokens = 1000, .speculate = speculate});
    harness.RunToEnd();
    EXPECT_EQ(harness.answer(id).tokens.size(), 3u);
    EXPECT_EQ(harness.answer(id).reason, FinishReason::kLength);
  }
}

TEST(Engine, BestFirstTreesOfAnySizeGiveTheIncrementalAnswer) {
  const auto prompts = RandomPrompts(60, 30, kVocabulary, 10);
  for (const int nodes : {1, 3, 16, 60}) {
    for (const SsmCase& ssms : SsmCases()) {
      EngineHarness harness(kVocabulary);
      harness.SetLlm(Llm());
      for (const FakeModel& model : ssms.models) harness.AddSsm(model);
      EngineOptions options{.max_tokens_per_batch = 100};
      options.speculation = {.max_nodes = nodes, .max_depth = 12, .max_width = 6};
      ASSERT_TRUE(harness.Start(options).ok());
      std::vector<RequestId> ids;
      for (const auto& prompt : prompts) {
        ids.push_back(*harness.engine().Submit(prompt, {.max_tokens = kAnswer}));
      }
      harness.RunToEnd();
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_THAT(harness.answer(ids[i]).tokens,
                    ElementsAreArray(GreedyContinuation(Llm(), prompts[i], kAnswer)));
      }
    }
  }
}

// A model that repeats one phrase with occasional variations.
std::vector<float> Parrot(absl::Span<const int> path) {
  std::vector<float> logits(kVocabulary, 0);
  const bool varies = path.size() % 23 == 0;
  logits[(path.back() * 7 + (varies ? 3 : 1)) % kVocabulary] = 5;
  return logits;
}

TEST(Engine, NgramsDraftWithoutAnySsm) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Parrot);
  EngineOptions options;
  options.speculation.ngram = {.depth = 5};
  ASSERT_TRUE(harness.Start(options).ok());
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(*harness.engine().Submit({i}, {.max_tokens = 150}));
  const RequestId off = *harness.engine().Submit({3}, {.max_tokens = 150, .speculate = false});
  harness.RunToEnd();
  for (int i = 0; i < 6; ++i) {
    EXPECT_THAT(harness.answer(ids[i]).tokens,
                ElementsAreArray(GreedyContinuation(Parrot, {i}, 150)));
    EXPECT_LT(harness.answer(ids[i]).usage.verification_steps, 80);
  }
  EXPECT_EQ(harness.answer(off).usage.drafted_tokens, 0);
  EXPECT_EQ(harness.answer(off).tokens, harness.answer(ids[3]).tokens);
  const EngineStatistics statistics = harness.engine().statistics();
  EXPECT_EQ(statistics.speculation.ngram_drafted, statistics.drafted_tokens);
  EXPECT_EQ(statistics.speculation.ngram_accepted, statistics.accepted_tokens);
  // Earlier outputs help a new request from its first tokens on.
  const RequestId late = *harness.engine().Submit({1, 3}, {.max_tokens = 40});
  harness.RunToEnd();
  EXPECT_LT(harness.answer(late).usage.verification_steps, 18);
}

TEST(Engine, NgramDraftsAndAnSsmShareTheTree) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Parrot);
  harness.AddSsm(AgreeingModel(Parrot, HashModel(2, kVocabulary), 0.5, 3));
  EngineOptions options;
  options.speculation.ngram = {.depth = 4};
  ASSERT_TRUE(harness.Start(options, "1,1").ok());
  const RequestId id = *harness.engine().Submit({1}, {.max_tokens = 200});
  harness.RunToEnd();
  EXPECT_THAT(harness.answer(id).tokens, ElementsAreArray(GreedyContinuation(Parrot, {1}, 200)));
  const EngineStatistics statistics = harness.engine().statistics();
  EXPECT_GT(statistics.speculation.ngram_accepted, 80);
  EXPECT_GT(statistics.accepted_tokens, statistics.speculation.ngram_accepted);
}

}  // namespace
}  // namespace espalier
