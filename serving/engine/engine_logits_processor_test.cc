// Logits processors, log-probabilities and stop conditions inside token trees behave as in
// incremental decoding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "serving/engine/engine_test_util.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 20;
constexpr int kAnswer = 24;

const FakeModel& Llm() {
  static const FakeModel& model = *new FakeModel(HashModel(1, kVocabulary));
  return model;
}
FakeModel Good() { return AgreeingModel(Llm(), HashModel(2, kVocabulary), 0.8, 3); }

std::vector<LogitsProcessorOptions> RuleCases() {
  return {{.repetition_penalty = 1.4},
          {.presence_penalty = 1.1, .frequency_penalty = 0.6},
          {.logit_bias = {{3, 2.0f}, {7, -100.0f}}, .bad_words = {{1, 2}, {4}, {9, 9, 0}}},
          {.repetition_penalty = 0.8, .frequency_penalty = -0.5, .allowed = {0, 2, 4, 6, 8, 10}}};
}

// The output by definition: one token at a time, from the whole history.
std::vector<int> Incremental(const LogitsProcessorOptions& rules, std::vector<int> tokens) {
  LogitsProcessor answer(std::make_shared<LogitsProcessorOptions>(rules), tokens, {});
  std::vector<int> out;
  for (int i = 0; i < kAnswer; ++i) {
    std::vector<float> logits = Llm()(tokens);
    EXPECT_TRUE(answer.Apply({}, logits.data(), kVocabulary).ok());
    out.push_back(
        static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    EXPECT_TRUE(answer.Append(out.back()).ok());
    tokens.push_back(out.back());
  }
  return out;
}

TEST(EngineLogitsProcessor, GreedyTreesMatchIncrementalDecodingUnderEveryProcessor) {
  const auto prompts = RandomPrompts(40, 30, kVocabulary, 7);
  for (const LogitsProcessorOptions& rules : RuleCases()) {
    for (const char* expansion : {"1,1,1,1", "3,2,1", "8"}) {
      EngineHarness harness(kVocabulary);
      harness.SetLlm(Llm());
      harness.AddSsm(Good());
      harness.AddSsm(HashModel(5, kVocabulary));
      ASSERT_TRUE(harness.Start({}, expansion).ok());
      std::vector<RequestId> ids;
      for (const std::vector<int>& prompt : prompts) {
        ids.push_back(*harness.engine().Submit(
            prompt, {.max_tokens = kAnswer,
                     .logits_processor = std::make_shared<LogitsProcessorOptions>(rules)}));
      }
      harness.RunToEnd();
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(harness.answer(ids[i]).tokens, Incremental(rules, prompts[i]));
      }
      EXPECT_GT(harness.engine().statistics().accepted_tokens, 50);
    }
  }
}

// The constraint runs out of tokens: the runner then returns the logits, and the engine finds the
// error.
TEST(EngineLogitsProcessor, ProcessorsThatMaskAllTokensFailOnlyTheirRequest) {
  for (const char* expansion : {"", "3,2,1"}) {
    EngineHarness harness(kVocabulary);
    harness.SetLlm(Llm());
    if (*expansion != 0) harness.AddSsm(Good());
    ASSERT_TRUE(harness.Start({}, expansion).ok());
    const auto dead = std::make_shared<LogitsProcessorOptions>(
        LogitsProcessorOptions{.allowed = {3, 4}, .bad_words = {{3, 4}, {3, 3}, {4, 3}, {4, 4}}});
    std::vector<RequestId> good, bad;
    for (const std::vector<int>& prompt : RandomPrompts(6, 12, kVocabulary, 3)) {
      good.push_back(*harness.engine().Submit(prompt, {.max_tokens = kAnswer}));
      bad.push_back(*harness.engine().Submit(
          prompt, {.max_tokens = kAnswer, .logits_processor = dead, .logprobs = 1}));
    }
    harness.RunToEnd();
    for (const RequestId id : bad) {
      EXPECT_EQ(harness.answer(id).tokens.size(), 1u);
      EXPECT_THAT(std::string(harness.answer(id).error.message()),
                  HasSubstr("no token may follow"));
    }
    for (const RequestId id : good) EXPECT_EQ(harness.answer(id).tokens.size(), kAnswer);
  }
}

// Logits processors apply to drafts, too, so an equal model drafts the same tokens.
TEST(EngineLogitsProcessor, AnSsmEqualToTheLlmIsAlwaysAcceptedUnderAnyProcessor) {
  for (const LogitsProcessorOptions& rules : RuleCases()) {
    for (const double temperature : {0.0, 0.8}) {
      for (const SampledDrafting sampled :
           {SampledDrafting::kWithoutReplacement, SampledDrafting::kCoupled}) {
        EngineHarness harness(kVocabulary);
        harness.SetLlm(Llm());
        harness.AddSsm(Llm());
        EngineOptions options;
        options.speculation.sampled = sampled;
        if (sampled == SampledDrafting::kCoupled) {
          options.speculation.max_nodes = 4;
          options.speculation.max_width = 1;
          options.speculation.max_depth = 4;
        }
        ASSERT_TRUE(harness.Start(options, "1,1,1,1").ok());
        uint64_t seed = 0;
        for (const std::vector<int>& prompt : RandomPrompts(20, 30, kVocabulary, 8)) {
          ASSERT_TRUE(harness.engine()
                          .Submit(prompt, {.max_tokens = 21,  // 1, and 4 times 4 + 1
                                           .sampling = {.temperature = temperature, .seed = ++seed},
                                           .logits_processor =
                                               std::make_shared<LogitsProcessorOptions>(rules)})
                          .ok());
        }
        harness.RunToEnd();
        const EngineStatistics statistics = harness.engine().statistics();
        EXPECT_EQ(statistics.drafted_tokens, 20 * 16);
        EXPECT_EQ(statistics.accepted_tokens, statistics.drafted_tokens)
            << temperature << " " << static_cast<int>(sampled);
      }
    }
  }
}

TEST(EngineLogitsProcessor, LogprobsDoNotDependOnTreeOrProcessors) {
  for (const char* expansion : {"", "2,2,1"}) {
    EngineHarness harness(kVocabulary);
    harness.SetLlm(Llm());
    if (*expansion != 0) harness.AddSsm(Good());
    ASSERT_TRUE(harness.Start({}, expansion).ok());
    std::vector<int> tokens = {1, 2, 3};
    ASSERT_TRUE(harness.engine()
                    .Submit(tokens, {.max_tokens = kAnswer,
                                     .logits_processor = std::make_shared<LogitsProcessorOptions>(
                                         LogitsProcessorOptions{.repetition_penalty = 1.4}),
                                     .logprobs = 2})
                    .ok());
    int seen = 0;
    while (!harness.engine().idle()) {
      ASSERT_TRUE(harness.engine().Step().ok());
      for (const RequestEvent& event : harness.engine().TakeEvents()) {
        ASSERT_EQ(event.logprobs.size(), event.tokens.size());
        for (size_t i = 0; i < event.tokens.size(); ++i, ++seen) {
          const std::vector<float> logits = Llm()(tokens);
          const TokenLogprobs expected = LogprobsOf(logits.data(), kVocabulary, event.tokens[i], 2);
          EXPECT_EQ(event.logprobs[i].token, event.tokens[i]);
          EXPECT_EQ(event.logprobs[i].logprob, expected.logprob);
          EXPECT_EQ(event.logprobs[i].top, expected.top);
          tokens.push_back(event.tokens[i]);
        }
      }
    }
    EXPECT_EQ(seen, kAnswer);
  }
}

// Prompts are chunked over steps, and recomputed after preemption.
TEST(EngineLogitsProcessor, PromptLogprobsComeOnceEachUnderChunksAndPreemption) {
  EngineHarness harness(kVocabulary);
  harness.limits().kv_slots = 90;
  harness.SetLlm(Llm());
  harness.AddSsm(Good());
  ASSERT_TRUE(harness.Start({.max_tokens_per_batch = 9}, "2,1").ok());
  const auto prompts = RandomPrompts(12, 40, kVocabulary, 9);
  std::map<RequestId, std::vector<int>> of;
  std::map<RequestId, std::vector<TokenLogprobs>> got;
  for (const auto& prompt : prompts) {
    of[*harness.engine().Submit(prompt, {.max_tokens = 20, .prompt_logprobs = 1})] = prompt;
  }
  while (!harness.engine().idle()) {
    ASSERT_TRUE(harness.engine().Step().ok());
    for (const RequestEvent& event : harness.engine().TakeEvents()) {
      auto& all = got[event.id];
      all.insert(all.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
    }
  }
  EXPECT_GT(harness.engine().statistics().preemptions, 0);
  for (const auto& [id, prompt] : of) {
    ASSERT_EQ(got[id].size(), prompt.size() - 1);
    for (size_t i = 1; i < prompt.size(); ++i) {
      const std::vector<float> logits = Llm()(absl::MakeConstSpan(prompt).subspan(0, i));
      const TokenLogprobs expected = LogprobsOf(logits.data(), kVocabulary, prompt[i], 1);
      EXPECT_EQ(got[id][i - 1].logprob, expected.logprob);
      EXPECT_EQ(got[id][i - 1].top, expected.top);
    }
  }
}

Answer Generate(RequestOptions options, std::vector<int> eos) {
  EngineHarness harness(kVocabulary, std::move(eos));
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  EXPECT_TRUE(harness.Start({}, "1,1,1,1,1").ok());
  const RequestId id = *harness.engine().Submit({1, 2, 3}, std::move(options));
  harness.RunToEnd();
  return harness.answer(id);
}

// A constraint that allows everything and reports that its masks are slow.
class Anything : public TokenConstraint {
 public:
  explicit Anything(bool costly) : costly_(costly) {}
  StateRef Start() const override { return std::make_shared<State>(); }
  absl::StatusOr<StateRef> After(const StateRef& place, int) override { return place; }
  absl::StatusOr<TokenBitmaskRef> AllowedTokens(const StateRef&) override {
    ++asked;
    auto all = std::make_shared<TokenBitmask>();
    for (int token = 0; token < kVocabulary; ++token) Insert(token, all.get());
    return all;
  }
  bool MayEnd(const StateRef&) const override { return true; }
  bool Costly() const override { return costly_; }
  bool Complete(const StateRef&) const override { return false; }

  int asked = 0;

 private:
  const bool costly_;
};

TEST(EngineLogitsProcessor, NothingIsDraftedWhileMasksAreSlowToCompute) {
  for (const auto& [costly, tune] : {std::pair(false, true), std::pair(true, true),
                                     std::pair(false, false), std::pair(true, false)}) {
    EngineHarness harness(kVocabulary);
    harness.SetLlm(Llm());
    harness.AddSsm(Llm());
    EngineOptions options;
    double clock = 0;
    options.seconds = [&] { return clock += 1e-4; };
    options.speculation.tune = tune;
    options.speculation.ngram.depth = 4;
    ASSERT_TRUE(harness.Start(options, tune ? "" : "2,1,1").ok());
    auto rules = std::make_shared<LogitsProcessorOptions>();
    const auto anything = std::make_shared<Anything>(costly);
    rules->constraint = anything;
    const RequestId id =
        *harness.engine().Submit({1, 2, 1, 2}, {.max_tokens = 200, .logits_processor = rules});
    harness.RunToEnd();
    EXPECT_EQ(harness.answer(id).tokens, GreedyContinuation(Llm(), {1, 2, 1, 2}, 200));
    EXPECT_EQ(harness.answer(id).usage.drafted_tokens == 0, costly);
    if (costly) {
      EXPECT_LE(anything->asked, 2 * 201);  // by the runner, or by the engine
    }
  }
}

TEST(EngineEnds, AStopTokenEndsInsideAPathAndHasNoTextUnlessIncluded) {
  const std::vector<int> all = GreedyContinuation(Llm(), {1, 2, 3}, 40);
  for (int stop = 0; stop < kVocabulary; ++stop) {
    const auto first = std::find(all.begin(), all.end(), stop);
    if (first == all.end()) continue;
    const std::vector<int> expected(all.begin(), first + 1);
    const Answer answer = Generate({.max_tokens = 40, .stop_token_ids = {stop}}, {});
    EXPECT_EQ(answer.tokens, expected);
    EXPECT_EQ(answer.text.size(), expected.size() - 1);
    EXPECT_EQ(answer.reason, FinishReason::kStop);
    const Answer with =
        Generate({.max_tokens = 40, .stop_token_ids = {stop}, .include_stop = true}, {});
    EXPECT_EQ(with.text.size(), expected.size());
  }
}

TEST(EngineEnds, NothingEndsBeforeMinTokens) {
  const std::vector<int> all = GreedyContinuation(Llm(), {1, 2, 3}, 40);
  const int eos = all[2];
  const auto rules =
      std::make_shared<LogitsProcessorOptions>(LogitsProcessorOptions{.min_tokens = 6});
  const Answer answer = Generate({.max_tokens = 12, .logits_processor = rules}, {eos});
  ASSERT_GE(answer.tokens.size(), 6u);
  EXPECT_EQ(std::count(answer.tokens.begin(), answer.tokens.begin() + 6, eos), 0);
}

TEST(EngineEnds, TimeoutsEndARequestInAnyPhaseAndSpareOthers) {
  double now = 0;
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  ASSERT_TRUE(harness.Start({.max_requests = 1, .seconds = [&] { return now; }}).ok());
  const RequestId running =
      *harness.engine().Submit({1, 2}, {.max_tokens = 100, .timeout_seconds = 5});
  const RequestId waiting =
      *harness.engine().Submit({1, 3}, {.max_tokens = 100, .timeout_seconds = 2.5});
  const RequestId patient = *harness.engine().Submit({1, 4}, {.max_tokens = 10});
  for (; now < 4; now += 1) ASSERT_TRUE(harness.Step().ok());
  EXPECT_EQ(harness.answer(waiting).error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(harness.answer(waiting).tokens.empty());
  now = 5.5;
  ASSERT_TRUE(harness.Step().ok());
  EXPECT_EQ(harness.answer(running).error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(harness.answer(running).error.message()), HasSubstr("4 tokens"));
  harness.RunToEnd();
  EXPECT_EQ(harness.answer(patient).tokens.size(), 10u);
}

// The runner applies masks, biases and penalties and computes log-probabilities; only verification
// of draws needs all logits.
TEST(EngineRowOutputs, FullLogitsAreCopiedOnlyWhereTheyAreNeeded) {
  const auto prompts = RandomPrompts(8, 12, kVocabulary, 9);
  const RequestOptions greedy{.max_tokens = kAnswer};
  RequestOptions reported = greedy, ruled = greedy, sampled = greedy, asked = greedy;
  RequestOptions undrafted = greedy, all = greedy;
  reported.logprobs = 0;
  ruled.logits_processor =
      std::make_shared<LogitsProcessorOptions>(LogitsProcessorOptions{.repetition_penalty = 1.4});
  sampled.sampling.temperature = 1;
  undrafted.sampling.temperature = 1;
  undrafted.speculate = false;
  asked.prompt_logprobs = 0;
  all.logits_processor = ruled.logits_processor;
  all.logprobs = all.prompt_logprobs = 3;
  const struct {
    RequestOptions options;
    bool shown;
  } cases[] = {{greedy, false}, {reported, false},  {ruled, false}, {sampled, true},
               {asked, false},  {undrafted, false}, {all, false}};
  std::vector<std::vector<int>> alone;
  for (const auto& [options, shown] : cases) {
    EngineHarness harness(kVocabulary);
    harness.SetLlm(Llm());
    harness.AddSsm(Good());
    ASSERT_TRUE(harness.Start({}, "2,1").ok());
    std::vector<RequestId> ids;
    for (const std::vector<int>& prompt : prompts) {
      ids.push_back(*harness.engine().Submit(prompt, options));
    }
    harness.RunToEnd();
    EXPECT_EQ(harness.llm().rows_with_logits() > 0, shown);
    if (!shown) {
      EXPECT_GT(harness.llm().choices(), 0);
    }
    if (alone.empty()) {
      for (const RequestId id : ids) alone.push_back(harness.answer(id).tokens);
    }
    // Beam search needs the most probable tokens, draws need all probabilities.
    const bool draws = !options.sampling.greedy() && options.speculate;
    EXPECT_EQ(harness.ssm(0).rows_with_logits() > 0, draws);
    EXPECT_EQ(harness.ssm(0).choices() > 0, options.sampling.greedy());
  }
  // In one batch with a request that looks at them, nothing changes for the others.
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(Good());
  ASSERT_TRUE(harness.Start({}, "2,1").ok());
  std::vector<RequestId> ids;
  for (const std::vector<int>& prompt : prompts) {
    ids.push_back(*harness.engine().Submit(prompt, greedy));
    ASSERT_TRUE(harness.engine().Submit(prompt, sampled).ok());
  }
  harness.RunToEnd();
  EXPECT_GT(harness.llm().rows_with_logits(), 0);
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(harness.answer(ids[i]).tokens, alone[i]);
}

}  // namespace
}  // namespace espalier
