// Prefix caching: outputs are the same with and without it, and shared prefixes are neither
// computed nor stored twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "serving/engine/engine_test_util.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 12;

FakeModel Llm() { return HashModel(1, kVocabulary, 5); }

std::vector<int> LongPrompt(int length, int last) {
  std::vector<int> prompt(length);
  for (int i = 0; i < length; ++i) prompt[i] = i * i % 7;
  prompt.back() = last;
  return prompt;
}

TEST(PrefixCache, ASecondRequestComputesOnlyWhatIsNew) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  ASSERT_TRUE(harness.Start({}, "1,1").ok());
  const RequestId first = *harness.engine().Submit(LongPrompt(100, 1), {.max_tokens = 20});
  harness.RunToEnd();
  const int64_t computed = harness.engine().statistics().prompt_tokens;
  EXPECT_EQ(computed, 100);
  const RequestId second = *harness.engine().Submit(LongPrompt(100, 2), {.max_tokens = 20});
  harness.RunToEnd();
  EXPECT_EQ(harness.answer(first).usage.cached_tokens, 0);
  EXPECT_EQ(harness.answer(second).usage.cached_tokens, 99);
  EXPECT_EQ(harness.engine().statistics().prompt_tokens - computed, 1);
  EXPECT_EQ(harness.answer(second).tokens, GreedyContinuation(Llm(), LongPrompt(100, 2), 20));
  // The SSM has its K and V, too: all drafts are accepted.
  EXPECT_EQ(harness.answer(second).usage.accepted_tokens,
            harness.answer(second).usage.drafted_tokens);
  // A second chat turn: the first output is cached with its prompt.
  std::vector<int> chat = LongPrompt(100, 2);
  for (const int token : harness.answer(second).tokens) chat.push_back(token);
  chat.push_back(3);
  const RequestId third = *harness.engine().Submit(chat, {.max_tokens = 5});
  harness.RunToEnd();
  EXPECT_EQ(harness.answer(third).usage.cached_tokens, 119);
}

TEST(PrefixCache, ASharedPrefixOfConcurrentRequestsIsComputedOnce) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  ASSERT_TRUE(harness.Start({.max_tokens_per_batch = 48}, "1,1").ok());
  std::vector<RequestId> ids;
  // Without sharing, eight times 200 tokens would not fit.
  for (int i = 0; i < 8; ++i) {
    ids.push_back(*harness.engine().Submit(LongPrompt(100, i % 2), {.max_tokens = 10}));
  }
  RequestOptions scored{.max_tokens = 3};
  scored.prompt_logprobs = 1;
  const RequestId other = *harness.engine().Submit(LongPrompt(100, 1), scored);
  harness.RunToEnd();
  // The last four tokens by each, and the one that scores its prompt by itself.
  EXPECT_EQ(harness.engine().statistics().prompt_tokens, 96 + 8 * 4 + 100);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(harness.answer(ids[i]).tokens, GreedyContinuation(Llm(), LongPrompt(100, i % 2), 10));
    EXPECT_EQ(harness.answer(ids[i]).usage.cached_tokens, i == 0 ? 0 : 96);
  }
  EXPECT_EQ(harness.answer(other).usage.cached_tokens, 0);
  // The SSM runs the last token of the prompt when it drafts, and one before it.
  EXPECT_EQ(harness.engine().statistics().ssm_kv[0].attached_total, 96 * 7);
}

// As with OpenAI's `n`: the shared prompt fills no block, or not the last one.
TEST(PrefixCache, EqualPromptsThatComeTogetherAreComputedOnce) {
  for (const int length : {20, 40}) {
    EngineHarness harness(kVocabulary);
    harness.SetLlm(Llm());
    ASSERT_TRUE(harness.Start({}).ok());
    std::vector<RequestId> ids;
    for (uint64_t i = 0; i < 5; ++i) {
      RequestOptions options{.max_tokens = 30};
      if (i > 0) options.sampling = {.temperature = 1, .seed = i};
      ids.push_back(*harness.engine().Submit(LongPrompt(length, 1), options));
    }
    harness.RunToEnd();
    EXPECT_EQ(harness.engine().statistics().prompt_tokens, length + 4);
    EXPECT_EQ(harness.answer(ids[0]).tokens, GreedyContinuation(Llm(), LongPrompt(length, 1), 30));
    for (uint64_t i = 1; i < 5; ++i) {
      EngineHarness alone(kVocabulary);
      alone.SetLlm(Llm());
      ASSERT_TRUE(alone.Start({.prefix_cache = false}).ok());
      RequestOptions options{.max_tokens = 30};
      options.sampling = {.temperature = 1, .seed = i};
      const RequestId id = *alone.engine().Submit(LongPrompt(length, 1), options);
      alone.RunToEnd();
      EXPECT_EQ(harness.answer(ids[i]).tokens, alone.answer(id).tokens);
    }
  }
}

TEST(PrefixCache, RequestsWithoutACommonPrefixDoNotWait) {
  for (const bool same : {false, true}) {
    EngineHarness harness(kVocabulary);
    harness.SetLlm(Llm());
    ASSERT_TRUE(harness.Start({}).ok());
    // What all of them begin with is cached.
    ASSERT_TRUE(harness.engine().Submit(LongPrompt(40, 1), {.max_tokens = 1}).ok());
    harness.RunToEnd();
    const int64_t before = harness.engine().statistics().prompt_tokens;
    std::vector<int> one = LongPrompt(100, 1), other = one;
    if (!same) other[40] = 9;
    for (const std::vector<int>& prompt : {one, other}) {
      ASSERT_TRUE(harness.engine().Submit(prompt, {.max_tokens = 1}).ok());
    }
    ASSERT_TRUE(harness.Step().ok());
    const int64_t each = 100 - 39;
    EXPECT_EQ(harness.engine().statistics().prompt_tokens - before, same ? each : 2 * each);
    harness.RunToEnd();
  }
  // Nor where it is all but the first token, so that nothing is.
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  ASSERT_TRUE(harness.Start({}).ok());
  for (const int first : {8, 9}) {
    std::vector<int> prompt = LongPrompt(60, 1);
    prompt[0] = first;
    ASSERT_TRUE(harness.engine().Submit(prompt, {.max_tokens = 1}).ok());
  }
  ASSERT_TRUE(harness.Step().ok());
  EXPECT_EQ(harness.engine().statistics().prompt_tokens, 120);
  harness.RunToEnd();
}

// The second turn of a chat where the SSM's pool holds one sequence: the LLM's cached prefix takes
// none of it.
TEST(PrefixCache, ASmallModelsPoolNeedHoldNoMoreThanTheContext) {
  EngineHarness harness(kVocabulary);
  harness.limits().kv_slots = 130;
  harness.SetLlm(Llm());
  RunnerLimits small = harness.limits();
  small.kv_slots = 112;
  harness.AddSsm(Llm(), small);
  ASSERT_TRUE(harness.Start({.max_requests = 1}, "1,1").ok());
  for (int i = 0; i < 3; ++i) {
    const RequestId id = *harness.engine().Submit(LongPrompt(100, i), {.max_tokens = 5});
    harness.RunToEnd();
    EXPECT_EQ(harness.answer(id).usage.cached_tokens, i == 0 ? 0 : 99);
  }
}

// Neither K and V of the LLM nor of an SSM are shared, whose drafts would come sooner.
TEST(PrefixCache, IsSharedWithRequestsOfTheSameSaltOnly) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  ASSERT_TRUE(harness.Start({}, "1,1").ok());
  for (const int cached : {0, 99}) {
    for (const char* salt : {"", "ours", "theirs"}) {
      RequestOptions options{.max_tokens = 20};
      options.cache_salt = salt;
      const std::vector<int> prompt = LongPrompt(100, cached > 0 ? 2 : 1);
      const int64_t before = harness.engine().statistics().ssm_kv[0].attached_total;
      const RequestId id = *harness.engine().Submit(prompt, options);
      harness.RunToEnd();
      EXPECT_EQ(harness.answer(id).usage.cached_tokens, cached) << salt;
      // The SSM runs the last token of the prompt when it drafts, and one before it.
      EXPECT_EQ(harness.engine().statistics().ssm_kv[0].attached_total - before,
                std::max(0, cached - 1))
          << salt;
      EXPECT_EQ(harness.answer(id).tokens, GreedyContinuation(Llm(), prompt, 20));
    }
  }
}

TEST(PrefixCache, IsDroppedWhenTheLlmFails) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  ASSERT_TRUE(harness.Start({}).ok());
  for (const bool fails : {false, true, false, false}) {
    const int64_t before = harness.engine().statistics().cached_tokens;
    const bool known = harness.engine().statistics().kv.cached > 0;
    ASSERT_TRUE(harness.engine().Submit(LongPrompt(60, 1), {.max_tokens = 5}).ok());
    harness.llm().FailFrom(fails ? harness.llm().steps() + 2 : 0);
    while (!harness.engine().idle()) (void)harness.Step();
    EXPECT_EQ(harness.engine().statistics().cached_tokens > before, known);
    EXPECT_EQ(harness.engine().statistics().kv.cached == 0, fails);
  }
}

TEST(PrefixCache, ManyRequestsOfOnePromptTakeItsSlotsOnce) {
  EngineHarness harness(kVocabulary);
  harness.limits().kv_slots = 400;
  harness.SetLlm(Llm());
  ASSERT_TRUE(harness.Start({.max_requests = 8}).ok());
  ASSERT_TRUE(harness.engine().Submit(LongPrompt(200, 1), {.max_tokens = 1}).ok());
  harness.RunToEnd();
  // Eight times 200 tokens would not fit by far.
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(harness.engine().Submit(LongPrompt(200, i), {.max_tokens = 8}).ok());
  }
  int most = 0;
  while (!harness.engine().idle()) {
    ASSERT_TRUE(harness.Step().ok());
    most = std::max(most, harness.engine().statistics().running);
  }
  EXPECT_EQ(most, 8);
  EXPECT_EQ(harness.engine().statistics().preemptions, 0);
}

TEST(PrefixCache, AnswersAreTheSameWithAndWithoutItUnderPreemptionCancelAndTrees) {
  int64_t cached = 0, preemptions = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    std::map<RequestId, std::vector<int>> answers[2];
    for (const bool prefix_cache : {false, true}) {
      std::mt19937_64 random(seed);
      EngineHarness harness(kVocabulary, {0});
      harness.limits().kv_slots = 140 + 60 * static_cast<int>(seed % 3);
      harness.limits().max_positions = 100;
      harness.SetLlm(Llm());
      for (int i = 0; i < static_cast<int>(seed % 3); ++i) {
        harness.AddSsm(AgreeingModel(Llm(), HashModel(2 + i, kVocabulary, 5), 0.7, 9));
      }
      EngineOptions options{.max_requests = 8, .max_tokens_per_batch = 40, .max_queue = 1000};
      options.prefix_cache = prefix_cache;
      if (seed % 2) {
        options.speculation.ngram.depth = 3;
        // N-gram drafts depend on earlier requests, and so would independent draws after them.
        options.speculation.sampled = SampledDrafting::kCoupled;
      }
      ASSERT_TRUE(harness.Start(options, "1,2,1").ok());
      std::vector<RequestId> cancelled;
      for (int i = 0; i < 120; ++i) {
        std::vector<int> prompt = LongPrompt(1 + static_cast<int>(random() % 60), 1);
        if (random() % 2) prompt[random() % prompt.size()] = static_cast<int>(random() % 9);
        RequestOptions request{.max_tokens = 1 + static_cast<int>(random() % 30)};
        if (random() % 2) request.sampling = {.temperature = 1, .seed = random()};
        if (seed % 3 == 0) request.priority = static_cast<int>(random() % 3);
        const RequestId id = *harness.engine().Submit(prompt, request);
        if (random() % 10 == 0) cancelled.push_back(id);
        for (int steps = static_cast<int>(random() % 4); steps > 0; --steps) {
          ASSERT_TRUE(harness.Step().ok());
        }
        if (!cancelled.empty() && random() % 3 == 0) {
          harness.engine().Cancel(cancelled.back());
          harness.Collect();
        }
      }
      harness.RunToEnd();
      for (const auto& [id, answer] : harness.answers()) {
        if (std::count(cancelled.begin(), cancelled.end(), id) > 0) continue;
        EXPECT_TRUE(answer.error.ok()) << answer.error;
        answers[prefix_cache][id] = answer.tokens;
      }
      cached += harness.engine().statistics().cached_tokens;
      preemptions += harness.engine().statistics().preemptions;
      EXPECT_EQ(prefix_cache, harness.engine().statistics().cached_tokens > 0);
    }
    EXPECT_EQ(answers[0], answers[1]) << "seed " << seed;
  }
  EXPECT_GT(cached, 2000);
  EXPECT_GT(preemptions, 10);
}

TEST(Priorities, HigherPrioritiesRunFirstAndPreemptLowerOnes) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  ASSERT_TRUE(harness.Start({.max_requests = 2}).ok());
  const auto submit = [&](int first, int priority) {
    RequestOptions options{.max_tokens = 30};
    options.priority = priority;
    return *harness.engine().Submit({first, 1}, options);
  };
  const RequestId low = submit(1, 5), middle = submit(2, 0), last = submit(3, 5);
  ASSERT_TRUE(harness.Step().ok());
  ASSERT_TRUE(harness.Step().ok());
  const RequestId urgent = submit(4, -1);
  std::vector<RequestId> order;
  while (!harness.engine().idle()) {
    ASSERT_TRUE(harness.Step().ok());
    for (const RequestId id : {low, middle, last, urgent}) {
      if (harness.answer(id).reason == FinishReason::kNone) continue;
      if (std::find(order.begin(), order.end(), id) == order.end()) order.push_back(id);
    }
  }
  EXPECT_THAT(order, ::testing::ElementsAre(middle, urgent, low, last));
  EXPECT_EQ(harness.engine().statistics().preemptions, 1);
  // It had to start again, and nobody can tell by its answer.
  EXPECT_EQ(harness.answer(low).tokens, GreedyContinuation(Llm(), {1, 1}, 30));
}

// Slots of the new request's prefix that only the preempted one uses are freed by one and taken by
// the other.
TEST(Priorities, APrefixOfThePreemptedRequestIsNotCountedTwice) {
  for (const int slots : {200, 210, 220, 230, 240, 250}) {
    EngineHarness harness(kVocabulary);
    harness.limits().kv_slots = slots;
    harness.SetLlm(Llm());
    ASSERT_TRUE(harness.Start({.max_requests = 4, .max_tokens_per_batch = 256}).ok());
    std::vector<int> other = LongPrompt(50, 3), longer = LongPrompt(96, 0), urgent = longer;
    other[0] = 7;
    for (int i = 0; i < 40; ++i) longer.push_back(5);
    for (int i = 0; i < 60; ++i) urgent.push_back(i % kVocabulary);
    std::map<RequestId, std::vector<int>> prompts;
    const auto submit = [&](const std::vector<int>& prompt, int priority) {
      RequestOptions options{.max_tokens = 5, .ignore_eos = true};
      options.priority = priority;
      prompts[*harness.engine().Submit(prompt, options)] = prompt;
    };
    submit(other, 0);
    submit(longer, 0);
    ASSERT_TRUE(harness.Step().ok());
    ASSERT_TRUE(harness.Step().ok());
    submit(urgent, -1);
    harness.RunToEnd();
    // The longer one alone, or both.
    EXPECT_EQ(harness.engine().statistics().preemptions, slots < 230 ? 2 : 1) << slots;
    for (const auto& [id, prompt] : prompts) {
      EXPECT_EQ(harness.answer(id).tokens, GreedyContinuation(Llm(), prompt, 5)) << slots;
    }
  }
}

TEST(Fairness, LongPromptsDelayNeitherDecodingNorShortPrompts) {
  EngineHarness harness(kVocabulary);
  harness.limits().max_positions = 3000;
  harness.limits().max_context_slots = 20000;
  harness.limits().kv_slots = 20000;
  harness.SetLlm(Llm());
  ASSERT_TRUE(harness.Start({.max_requests = 8, .max_tokens_per_batch = 64}).ok());
  const RequestId talking = *harness.engine().Submit({1}, {.max_tokens = 500});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(harness.Step().ok());
  std::vector<RequestId> heavy;
  for (int i = 0; i < 3; ++i) {
    std::vector<int> prompt = LongPrompt(2000, i);
    prompt[0] = i;  // no common prefix
    heavy.push_back(*harness.engine().Submit(prompt, {.max_tokens = 4}));
  }
  ASSERT_TRUE(harness.Step().ok());
  const RequestId light = *harness.engine().Submit({5, 6, 7}, {.max_tokens = 4});
  size_t said = harness.answer(talking).tokens.size();
  int steps = 0, waited = -1;
  while (harness.answer(heavy[2]).reason == FinishReason::kNone) {
    ASSERT_TRUE(harness.Step().ok());
    ++steps;
    // One token per step, however many prompt rows the step has; steps stay within the limit.
    ASSERT_EQ(harness.answer(talking).tokens.size(), ++said);
    ASSERT_LE(harness.llm().largest_batch(), 64);
    if (waited < 0 && harness.answer(light).reason != FinishReason::kNone) waited = steps;
  }
  EXPECT_GT(steps, 80);
  EXPECT_GT(waited, 0);
  EXPECT_LT(waited, 8);
}

}  // namespace
}  // namespace espalier
