// Requests with different LoRA adapters, and embeddings, on one engine: each gets the same output
// as alone, whatever is shared, drafted, preempted and cancelled concurrently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "serving/engine/engine_test_util.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 12;
constexpr int kAdapters = 3;
constexpr int kHidden = 5;

// -1: the base model.
FakeModel Model(int adapter) { return HashModel(100 + adapter, kVocabulary, 5); }

std::unique_ptr<EngineHarness> Harness(const EngineOptions& options, int ssms, int slots = 4096) {
  auto harness = std::make_unique<EngineHarness>(kVocabulary);
  harness->limits().kv_slots = slots;
  harness->limits().max_positions = 100;
  harness->limits().hidden = kHidden;
  harness->SetLlm(Model(-1));
  std::vector<FakeModel> adapters;
  for (int i = 0; i < kAdapters; ++i) adapters.push_back(Model(i));
  harness->llm().SetAdapters(adapters);
  // SSMs have no adapters, so their drafts are good for some of the requests only.
  for (int s = 0; s < ssms; ++s) {
    harness->AddSsm(AgreeingModel(Model(-1), Model(s), 0.5, 3));
  }
  const absl::Status status = harness->Start(options, ssms > 0 ? "1,2,1" : "");
  EXPECT_TRUE(status.ok()) << status;
  return harness;
}

std::vector<int> Prompt(int length, int last) {
  std::vector<int> prompt(length);
  for (int i = 0; i < length; ++i) prompt[i] = i * i % 7;
  prompt.back() = last;
  return prompt;
}

std::vector<float> Hidden(const FakeModel& model, const std::vector<int>& prompt) {
  const std::vector<float> logits = model(prompt);
  return {logits.begin(), logits.begin() + kHidden};
}

TEST(Adapters, AdaptersShareNoKvBlocks) {
  const auto harness = Harness({}, 0);
  for (const int adapter : {-1, 0, 1}) {
    for (const int cached : {0, 59}) {
      RequestOptions options{.max_tokens = 12};
      options.adapter = adapter;
      const RequestId id = *harness->engine().Submit(Prompt(60, 1), options);
      harness->RunToEnd();
      EXPECT_TRUE(harness->answer(id).error.ok()) << harness->answer(id).error;
      EXPECT_EQ(harness->answer(id).usage.cached_tokens, cached) << adapter;
      EXPECT_EQ(harness->answer(id).tokens, GreedyContinuation(Model(adapter), Prompt(60, 1), 12));
    }
  }
}

TEST(Adapters, MixedBatchesGiveTheSameTokensAsSingleRequests) {
  int64_t cached = 0, preemptions = 0, accepted = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    std::mt19937_64 random(seed);
    EngineOptions options{.max_requests = 8, .max_tokens_per_batch = 40, .max_queue = 1000};
    options.speculation.ngram.depth = seed % 2 ? 3 : 0;
    const auto harness =
        Harness(options, static_cast<int>(seed % 3), 140 + 60 * static_cast<int>(seed % 3));
    struct Asked {
      std::vector<int> prompt;
      RequestOptions options;
      bool cancelled = false;
    };
    std::map<RequestId, Asked> asked;
    for (int i = 0; i < 150; ++i) {
      Asked one{.prompt = Prompt(1 + static_cast<int>(random() % 60), 1)};
      if (random() % 2) one.prompt[random() % one.prompt.size()] = static_cast<int>(random() % 9);
      one.options.max_tokens = 1 + static_cast<int>(random() % 30);
      one.options.adapter = static_cast<int>(random() % (kAdapters + 1)) - 1;
      one.options.embed = random() % 3 == 0;
      const RequestId id = *harness->engine().Submit(one.prompt, one.options);
      asked[id] = one;
      for (int steps = static_cast<int>(random() % 4); steps > 0; --steps) {
        ASSERT_TRUE(harness->Step().ok());
      }
      if (random() % 12 == 0 && harness->engine().Cancel(id)) asked[id].cancelled = true;
      harness->Collect();
    }
    harness->RunToEnd();
    for (const auto& [id, one] : asked) {
      if (one.cancelled) continue;
      const Answer& answer = harness->answer(id);
      ASSERT_TRUE(answer.error.ok()) << answer.error;
      const FakeModel model = Model(one.options.adapter);
      if (one.options.embed) {
        EXPECT_EQ(answer.reason, FinishReason::kStop);
        EXPECT_TRUE(answer.tokens.empty());
        EXPECT_EQ(answer.embedding, Hidden(model, one.prompt)) << "seed " << seed;
      } else {
        EXPECT_TRUE(answer.embedding.empty());
        EXPECT_EQ(answer.tokens, GreedyContinuation(model, one.prompt, one.options.max_tokens))
            << "seed " << seed;
      }
      accepted += answer.usage.accepted_tokens;
    }
    cached += harness->engine().statistics().cached_tokens;
    preemptions += harness->engine().statistics().preemptions;
  }
  EXPECT_GT(cached, 500);
  EXPECT_GT(preemptions, 5);
  EXPECT_GT(accepted, 500);
}

TEST(Adapters, AnUnknownAdapterIsRefused) {
  const auto harness = Harness({}, 0);
  for (const int adapter : {-2, kAdapters}) {
    RequestOptions options{.max_tokens = 1};
    options.adapter = adapter;
    const auto id = harness->engine().Submit({1}, options);
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(id.status().message()), HasSubstr("the LLM has 3"));
  }
}

TEST(Embeddings, LongPromptsAreChunkedAndDelayNoOtherRequest) {
  const auto harness = Harness({.max_requests = 4, .max_tokens_per_batch = 16}, 0);
  const RequestId talking = *harness->engine().Submit({1}, {.max_tokens = 40});
  ASSERT_TRUE(harness->Step().ok());
  // As long as the context: an embedding needs no position for an output token.
  const std::vector<int> prompt = Prompt(100, 2);
  EXPECT_FALSE(harness->engine().Submit(prompt, {.max_tokens = 1}).ok());
  RequestOptions options;
  options.embed = true;
  const RequestId id = *harness->engine().Submit(prompt, options);
  size_t said = harness->answer(talking).tokens.size();
  int steps = 0;
  while (harness->answer(id).reason == FinishReason::kNone) {
    ASSERT_TRUE(harness->Step().ok());
    ++steps;
    ASSERT_EQ(harness->answer(talking).tokens.size(), ++said);
  }
  EXPECT_GE(steps, 7);  // 15 rows beside the decoding request
  EXPECT_EQ(harness->answer(id).embedding, Hidden(Model(-1), prompt));
  EXPECT_EQ(harness->answer(id).usage.completion_tokens, 0);
  EXPECT_EQ(harness->answer(id).usage.prompt_tokens, 100);
  harness->RunToEnd();
}

TEST(Embeddings, ARunnerWithoutHiddenStatesRefusesEmbeddings) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Model(-1));
  ASSERT_TRUE(harness.Start({}).ok());
  RequestOptions options;
  options.embed = true;
  EXPECT_EQ(harness.engine().Submit({1}, options).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace espalier
