// Stop conditions inside an accepted path, cancellation, failures and refusals.
#include "serving/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "serving/engine/engine_test_util.h"
#include "serving/tokenizer/byte_tokenizer.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr int kVocabulary = 20;

FakeModel Llm() { return HashModel(1, kVocabulary); }

// Generates with a deep tree of an SSM that is always right, so that every stop falls inside a
// path.
Answer Generate(RequestOptions options, std::vector<int> eos, const char* expansion) {
  EngineHarness harness(kVocabulary, std::move(eos));
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  EXPECT_TRUE(harness.Start({}, expansion).ok());
  const RequestId id = *harness.engine().Submit({1, 2, 3}, std::move(options));
  harness.RunToEnd();
  return harness.answer(id);
}

TEST(EngineCuts, MaxTokensIsExactWhereverItFallsInAPath) {
  const std::vector<int> all = GreedyContinuation(Llm(), {1, 2, 3}, 40);
  for (int most = 1; most <= 12; ++most) {
    const Answer answer = Generate({.max_tokens = most}, {}, "1,1,1,1,1");
    EXPECT_THAT(answer.tokens, ElementsAreArray(all.begin(), all.begin() + most));
    EXPECT_EQ(answer.usage.completion_tokens, most);
    // All drafted tokens were accepted, and none beyond the end was drafted.
    EXPECT_EQ(answer.usage.drafted_tokens, answer.usage.accepted_tokens);
    EXPECT_LT(answer.usage.accepted_tokens, most);
  }
}

TEST(EngineCuts, EndOfSequenceInsideAPathEndsThereAndNowhereElse) {
  const std::vector<int> all = GreedyContinuation(Llm(), {1, 2, 3}, 40);
  for (int eos = 0; eos < kVocabulary; ++eos) {
    const auto first = std::find(all.begin(), all.end(), eos);
    if (first == all.end()) continue;
    const std::vector<int> expected(all.begin(), first + 1);
    for (const char* expansion : {"", "1,1,1,1,1,1", "2,2,1"}) {
      const Answer answer = Generate({.max_tokens = 40}, {eos}, expansion);
      EXPECT_EQ(answer.tokens, expected);
      EXPECT_EQ(answer.text.size(), expected.size() - 1);
      EXPECT_EQ(answer.reason, FinishReason::kStop);
      EXPECT_EQ(Generate({.max_tokens = 40, .ignore_eos = true}, {eos}, expansion).tokens, all);
    }
  }
}

TEST(EngineCuts, StopStringsInsideAPathCutTheTextBeforeThem) {
  const std::vector<int> all = GreedyContinuation(Llm(), {1, 2, 3}, 40);
  std::string text;
  for (const int token : all) text.push_back(static_cast<char>('a' + token));
  for (int begin = 0; begin < 12; ++begin) {
    for (const int length : {1, 2, 4}) {
      const std::string stop = text.substr(begin, length);
      const size_t found = text.find(stop);
      for (const char* expansion : {"", "1,1,1,1,1,1"}) {
        const Answer answer =
            Generate({.max_tokens = 40, .stop = {"no such", stop}}, {}, expansion);
        EXPECT_EQ(answer.text, text.substr(0, found));
        EXPECT_EQ(answer.tokens.size(), found + length);
        EXPECT_EQ(answer.reason, FinishReason::kStop);
      }
    }
  }
}

TEST(EngineCuts, EveryEventIsWholeCharacters) {
  const auto tokenizer = *ByteTokenizer::Create();
  FakeModelRunner llm(FakeModelRunner::LargeLimits(256), HashModel(5, 256));
  FakeModelRunner ssm(FakeModelRunner::LargeLimits(256), HashModel(5, 256));
  const auto engine =
      *Engine::Create(&llm, {&ssm}, tokenizer.get(), {.expansion = *Expansion::Parse("1,1")});
  ASSERT_TRUE(engine->Submit(tokenizer->Encode("\xE2\x82\xAC"), {.max_tokens = 200}).ok());
  std::string text;
  std::vector<int> tokens;
  while (!engine->idle()) {
    ASSERT_TRUE(engine->Step().ok());
    for (const RequestEvent& event : engine->TakeEvents()) {
      EXPECT_TRUE(IsValidUtf8(event.text));
      text += event.text;
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    }
  }
  EXPECT_EQ(tokens.size(), 200u);
  EXPECT_EQ(text, tokenizer->Decode(tokens));
}

class EngineTest : public ::testing::Test {
 protected:
  void Start(EngineOptions options = {}) {
    harness_.SetLlm(Llm());
    harness_.AddSsm(AgreeingModel(Llm(), HashModel(2, kVocabulary), 0.7, 3));
    ASSERT_TRUE(harness_.Start(std::move(options), "1,2,1").ok());
  }
  Engine& engine() { return harness_.engine(); }

  EngineHarness harness_{kVocabulary};
};

TEST_F(EngineTest, CancelFreesEverythingInEveryPhase) {
  Start({.max_requests = 2, .max_tokens_per_batch = 12});
  // While waiting, within the prompt, and while decoding.
  for (const int steps : {0, 1, 2, 5, 9}) {
    const RequestId first = *engine().Submit(std::vector<int>(30, 1), {.max_tokens = 50});
    const RequestId second = *engine().Submit(std::vector<int>(30, 2), {.max_tokens = 50});
    const RequestId third = *engine().Submit({3}, {.max_tokens = 50});
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(harness_.Step().ok());
    for (const RequestId id : {second, third, first}) EXPECT_TRUE(engine().Cancel(id));
    EXPECT_FALSE(engine().Cancel(first));
    harness_.Collect();
    EXPECT_EQ(harness_.answer(first).reason, FinishReason::kCancelled);
    EXPECT_TRUE(engine().idle());
    EXPECT_EQ(engine().statistics().kv.used, 0);
    EXPECT_EQ(engine().statistics().ssm_kv[0].used, 0);
    EXPECT_TRUE(engine().CheckInvariants().ok());
  }
}

TEST_F(EngineTest, RefusesWhatItCannotServe) {
  Start({.max_queue = 2, .max_sequence_length = 32});
  const auto error = [&](std::vector<int> prompt, RequestOptions options = {}) {
    return std::string(engine().Submit(std::move(prompt), std::move(options)).status().message());
  };
  EXPECT_THAT(error(std::vector<int>(32, 1)), HasSubstr("has 32 tokens, the context 32"));
  EXPECT_THAT(error({}), HasSubstr("empty"));
  EXPECT_THAT(error({1, 20}), HasSubstr("token 1 is 20, the vocabulary has 20"));
  EXPECT_THAT(error({-1}), HasSubstr("token 0 is -1"));
  EXPECT_THAT(error({1}, {.max_tokens = -5}), HasSubstr("max_tokens"));
  EXPECT_THAT(error({1}, {.sampling = {.temperature = NAN}}), HasSubstr("temperature"));
  EXPECT_TRUE(engine().idle());
  ASSERT_TRUE(engine().Submit({1}, {}).ok());
  ASSERT_TRUE(engine().Submit({1}, {}).ok());
  EXPECT_EQ(engine().Submit({1}, {}).status().code(), absl::StatusCode::kResourceExhausted);
  harness_.RunToEnd();
  EXPECT_TRUE(engine().Submit({1}, {}).ok());
}

// Regression: background work kept users out of the queue.
TEST_F(EngineTest, AHigherPriorityEvictsTheLastOfAFullQueue) {
  Start({.max_requests = 1, .max_queue = 2});
  const auto refused = [&](RequestId id) {
    harness_.Collect();
    return absl::IsResourceExhausted(harness_.answer(id).error);
  };
  const auto submit = [&](RequestOptions options) { return engine().Submit({1}, options); };
  const RequestId first = *submit({.priority = 5});
  const RequestId last = *submit({.priority = 5});
  const absl::StatusOr<RequestId> before = submit({});
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_TRUE(refused(last));
  EXPECT_EQ(engine().statistics().waiting, 2);
  EXPECT_TRUE(absl::IsResourceExhausted(submit({.priority = 5}).status())) << "it outranks nobody";
  // A request of a started group is neither refused nor evicted.
  const absl::StatusOr<RequestId> follows =
      submit({.priority = 5, .group_started = std::make_shared<std::atomic<bool>>(true)});
  ASSERT_TRUE(follows.ok()) << follows.status();
  const absl::StatusOr<RequestId> second = submit({});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(refused(first));
  EXPECT_TRUE(absl::IsResourceExhausted(submit({}).status())) << "its equals fill the queue";
  harness_.RunToEnd();
  for (const RequestId id : {*before, *second, *follows}) {
    EXPECT_EQ(harness_.answer(id).reason, FinishReason::kLength);
  }
}

// Regression: a client lost the choices that it had already received.
TEST_F(EngineTest, RequestsOfAStartedGroupAreNotEvictedFromTheQueue) {
  Start({.max_requests = 2, .max_queue = 4});
  const auto begun = std::make_shared<std::atomic<bool>>(false);
  const auto submit = [&](RequestOptions options) {
    const absl::StatusOr<RequestId> id = engine().Submit({1, 2}, std::move(options));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  };
  std::vector<RequestId> whole, alone;
  for (int i = 0; i < 4; ++i) whole.push_back(submit({.priority = 1, .group_started = begun}));
  EXPECT_FALSE(*begun);
  ASSERT_TRUE(harness_.Step().ok());
  EXPECT_TRUE(*begun);
  ASSERT_EQ(engine().statistics().waiting, 2);
  for (int i = 0; i < 2; ++i) alone.push_back(submit({.priority = 1}));
  // All of them come before the two that are left, who keep nobody out, either.
  for (int i = 0; i < 4; ++i) whole.push_back(submit({}));
  EXPECT_TRUE(absl::IsResourceExhausted(engine().Submit({1}, {}).status()));
  harness_.RunToEnd();
  for (const RequestId id : alone) {
    EXPECT_TRUE(absl::IsResourceExhausted(harness_.answer(id).error));
  }
  for (const RequestId id : whole) {
    EXPECT_EQ(harness_.answer(id).reason, FinishReason::kLength) << harness_.answer(id).error;
  }
}

TEST_F(EngineTest, OutOfMemoryInAStepIsNotReportedAsAFullQueue) {
  Start({});
  const RequestId id = *engine().Submit({1, 2}, {});
  harness_.llm().FailFrom(1, absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::IsResourceExhausted(harness_.Step()));
  EXPECT_TRUE(absl::IsInternal(harness_.answer(id).error)) << harness_.answer(id).error;
}

TEST_F(EngineTest, AFailingLlmEndsTheRunningRequestsAndSparesTheWaiting) {
  Start({.max_requests = 1});
  const RequestId running = *engine().Submit({1, 2}, {});
  const RequestId waiting = *engine().Submit({3}, {});
  ASSERT_TRUE(harness_.Step().ok());
  harness_.llm().FailFrom(2);
  EXPECT_EQ(harness_.Step().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness_.answer(running).reason, FinishReason::kError);
  EXPECT_EQ(harness_.answer(running).error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine().statistics().waiting, 1);
  harness_.llm().FailFrom(0);
  harness_.RunToEnd();
  EXPECT_THAT(harness_.answer(waiting).tokens,
              ElementsAreArray(GreedyContinuation(Llm(), {3}, 16)));
}

TEST_F(EngineTest, ALostCacheEndsTheRunningRequestsAndNoPrefixOfItIsUsedAgain) {
  Start({.max_requests = 1});
  const std::vector<int> prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  const RequestId before = *engine().Submit(prompt, {.max_tokens = 4});
  harness_.RunToEnd();
  ASSERT_EQ(harness_.answer(before).reason, FinishReason::kLength);
  const RequestId running = *engine().Submit({9, 2}, {});
  const RequestId waiting = *engine().Submit(prompt, {.max_tokens = 4});
  ASSERT_TRUE(harness_.Step().ok());
  harness_.llm().LoseCache();  // between two steps: none of them fails
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(running).error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness_.answer(waiting).tokens, harness_.answer(before).tokens);
  EXPECT_EQ(harness_.answer(waiting).usage.cached_tokens, 0);
  // Nothing runs while it is lost: the next request is spared, and still reuses nothing.
  harness_.llm().LoseCache();
  // The runner fails if a batch names a slot of the lost cache.
  const RequestId after = *engine().Submit(prompt, {.max_tokens = 4});
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(after).tokens, harness_.answer(before).tokens);
  EXPECT_EQ(harness_.answer(after).usage.cached_tokens, 0);
}

TEST_F(EngineTest, AModelMovesOnceWhatRunsHasEnded) {
  Start({.max_requests = 2});
  const RequestId running = *engine().Submit({9, 2}, {.max_tokens = 60});
  ASSERT_TRUE(harness_.Step().ok());
  harness_.llm().Move();
  const RequestId waiting = *engine().Submit({3}, {.max_tokens = 4});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(harness_.Step().ok());
  EXPECT_EQ(engine().statistics().running, 1);
  EXPECT_EQ(engine().statistics().waiting, 1) << "it would have to begin again after the move";
  harness_.RunToEnd();
  EXPECT_THAT(harness_.answer(running).tokens,
              ElementsAreArray(GreedyContinuation(Llm(), {9, 2}, 60)));
  EXPECT_FALSE(harness_.llm().is_to_move());
  EXPECT_THAT(harness_.answer(waiting).tokens, ElementsAreArray(GreedyContinuation(Llm(), {3}, 4)));
}

TEST_F(EngineTest, AFailingSsmIsDisabledAndRequestsContinue) {
  Start();
  const RequestId id = *engine().Submit({1, 2}, {.max_tokens = 40});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(harness_.Step().ok());
  EXPECT_TRUE(engine().statistics().speculation.ssm_status[0].ok());
  harness_.ssm(0).FailFrom(harness_.ssm(0).steps() + 2);  // within a tree
  harness_.RunToEnd();
  const absl::Status status = engine().statistics().speculation.ssm_status[0];
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("SSM 0"));
  EXPECT_THAT(harness_.answer(id).tokens, ElementsAreArray(GreedyContinuation(Llm(), {1, 2}, 40)));
  EXPECT_GT(harness_.answer(id).usage.accepted_tokens, 0);
  // Later requests do not use it.
  const int64_t steps = harness_.ssm(0).steps();
  const RequestId later = *engine().Submit({3}, {});
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(later).reason, FinishReason::kLength);
  EXPECT_EQ(harness_.ssm(0).steps(), steps);
}

// As an SSM on a worker that dies and is loaded again elsewhere some steps later.
TEST_F(EngineTest, AnUnavailableSsmDraftsAgainWithAnEmptyCache) {
  Start();
  std::vector<int> prompt;
  for (int i = 0; i < 40; ++i) prompt.push_back(i % 7);
  const std::vector<int> expected = GreedyContinuation(Llm(), prompt, 60);
  const RequestId before = *engine().Submit(prompt, {.max_tokens = 60});
  harness_.RunToEnd();  // its blocks are shared from now on
  const RequestId id = *engine().Submit(prompt, {.max_tokens = 60});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(harness_.Step().ok());
  harness_.ssm(0).FailFrom(harness_.ssm(0).steps() + 2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(harness_.Step().ok());
  EXPECT_EQ(engine().statistics().speculation.ssm_status[0].code(), absl::StatusCode::kUnavailable);
  const int64_t drafts = engine().statistics().speculation.ssm_drafts[0];
  harness_.ssm(0).FailFrom(0);
  harness_.ssm(0).LoseCache();
  // Its runner says so if it is shown a slot of the cache that is gone.
  const RequestId after = *engine().Submit(prompt, {.max_tokens = 60});
  harness_.RunToEnd();
  EXPECT_TRUE(engine().statistics().speculation.ssm_status[0].ok())
      << engine().statistics().speculation.ssm_status[0];
  EXPECT_GT(engine().statistics().speculation.ssm_drafts[0], drafts);
  for (const RequestId each : {before, id, after}) {
    EXPECT_THAT(harness_.answer(each).tokens, ElementsAreArray(expected));
  }
  EXPECT_GT(harness_.answer(after).usage.accepted_tokens, 0);
}

// As after a restart of the coordinator, before workers have joined.
TEST(Engine, UnavailableModelsAreCalibratedOnceTheyReturn) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  double now = 0;
  EngineOptions options;
  options.seconds = [&now] { return now += 1e-4; };
  options.speculation.tune = true;
  options.speculation.calibration_seconds = 0.05;
  harness.llm().FailFrom(1);
  harness.ssm(0).FailFrom(1);
  ASSERT_TRUE(harness.Start(options, "1,1,1").ok());
  const std::vector<int> prompt = {3, 1, 2};
  const RequestId early = *harness.engine().Submit(prompt, {.max_tokens = 8});
  EXPECT_EQ(harness.Step().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness.answer(early).error.code(), absl::StatusCode::kUnavailable);
  harness.llm().FailFrom(0);
  harness.llm().LoseCache();
  const RequestId alone = *harness.engine().Submit(prompt, {.max_tokens = 40});
  harness.RunToEnd();
  EXPECT_GT(harness.llm().largest_batch(), 16) << "it was not calibrated";
  EXPECT_EQ(harness.answer(alone).usage.drafted_tokens, 0);
  harness.ssm(0).FailFrom(0);
  harness.ssm(0).LoseCache();
  const RequestId id = *harness.engine().Submit(prompt, {.max_tokens = 40});
  harness.RunToEnd();
  EXPECT_GT(harness.ssm(0).largest_batch(), 16) << "it was not calibrated";
  for (const RequestId each : {alone, id}) {
    EXPECT_THAT(harness.answer(each).tokens,
                ElementsAreArray(GreedyContinuation(Llm(), prompt, 40)));
  }
}

// The SSM is unavailable only during its calibration; afterwards its cache holds the request.
TEST(Engine, CalibrationNeverRunsWhileRequestsHoldKvSlots) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  double now = 0;
  int64_t back_at = 0;  // in LLM steps
  EngineOptions options;
  options.seconds = [&] {
    if (back_at > 0 && harness.llm().steps() >= back_at) harness.llm().FailFrom(0);
    return now += 1e-4;
  };
  options.speculation.tune = true;
  options.speculation.calibration_seconds = 0.05;
  harness.llm().FailFrom(1);
  ASSERT_TRUE(harness.Start(options, "1,1,1").ok());
  back_at = harness.llm().steps() + 1;
  const std::vector<int> prompt = {3, 1, 2};
  const RequestId id = *harness.engine().Submit(prompt, {.max_tokens = 40});
  harness.RunToEnd();
  EXPECT_THAT(harness.answer(id).tokens, ElementsAreArray(GreedyContinuation(Llm(), prompt, 40)));
}

TEST(Engine, AnSsmWithNanLogitsIsDisabledAndTheOtherContinues) {
  for (const double temperature : {0.0, 1.0}) {
    EngineHarness harness(kVocabulary);
    harness.SetLlm(Llm());
    harness.AddSsm([](absl::Span<const int> path) {
      std::vector<float> logits = Llm()(path);
      if (path.size() > 9) logits[path.size() % kVocabulary] = NAN;
      return logits;
    });
    harness.AddSsm(Llm());
    ASSERT_TRUE(harness.Start({}, "1,2,1").ok());
    std::vector<RequestId> ids;
    for (int i = 0; i < 5; ++i) {
      ids.push_back(*harness.engine().Submit(
          {i, 2}, {.max_tokens = 40, .sampling = {.temperature = temperature, .seed = 3}}));
    }
    harness.RunToEnd();
    const SpeculationStatistics statistics = harness.engine().statistics().speculation;
    EXPECT_THAT(std::string(statistics.ssm_status[0].message()), HasSubstr("SSM 0"));
    EXPECT_TRUE(statistics.ssm_status[1].ok());
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(harness.answer(ids[i]).reason, FinishReason::kLength);
      EXPECT_LT(harness.answer(ids[i]).usage.verification_steps, 30);  // still drafted for
      if (temperature > 0) continue;
      EXPECT_THAT(harness.answer(ids[i]).tokens,
                  ElementsAreArray(GreedyContinuation(Llm(), {i, 2}, 40)));
    }
  }
}

TEST(Engine, NanLogitsFailOnlyTheirRequest) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm([](absl::Span<const int> path) {
    std::vector<float> logits = Llm()(path);
    if (path[0] == 7 && path.size() > 4) logits[3] = NAN;
    return logits;
  });
  ASSERT_TRUE(harness.Start({}).ok());
  const RequestId bad = *harness.engine().Submit({7, 1}, {});
  const RequestId good = *harness.engine().Submit({8, 1}, {});
  harness.RunToEnd();
  EXPECT_EQ(harness.answer(bad).reason, FinishReason::kError);
  EXPECT_THAT(std::string(harness.answer(bad).error.message()), HasSubstr("logit of token 3"));
  EXPECT_EQ(harness.answer(good).reason, FinishReason::kLength);
}

TEST(Engine, RefusesModelsThatDoNotFitTogether) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  RunnerLimits other = FakeModelRunner::LargeLimits(kVocabulary + 1);
  harness.AddSsm(HashModel(1, kVocabulary + 1), other);
  EXPECT_THAT(std::string(harness.Start({}, "1,1").message()),
              HasSubstr("SSM 0 has a vocabulary of 21, the LLM one of 20"));
}

TEST(Engine, RefusesTreesThatDoNotFitABatch) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  harness.AddSsm(Llm());
  EXPECT_THAT(std::string(harness.Start({.max_tokens_per_batch = 11}, "1,1,3,1,1,1").message()),
              HasSubstr("has 14 nodes"));
  EXPECT_THAT(std::string(harness.Start({.max_sequence_length = 9999}, "").message()),
              HasSubstr("9999, the model has 256"));
}

TEST(Engine, TimesComeFromTheInjectedClock) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  double now = 10;
  ASSERT_TRUE(harness.Start({.seconds = [&] { return now; }}).ok());
  const RequestId id = *harness.engine().Submit({1}, {.max_tokens = 2});
  now = 11.5;
  ASSERT_TRUE(harness.Step().ok());
  now = 13;
  ASSERT_TRUE(harness.Step().ok());
  EXPECT_DOUBLE_EQ(harness.answer(id).usage.seconds_to_first_token, 1.5);
  EXPECT_DOUBLE_EQ(harness.answer(id).usage.seconds, 3);
}

// Counts the time that a request waited during a long step before the engine received it.
TEST(Engine, TimesAndTimeoutsCountFromArrival) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(Llm());
  double now = 10;
  ASSERT_TRUE(harness.Start({.seconds = [&] { return now; }}).ok());
  const RequestId id = *harness.engine().Submit({1}, {.max_tokens = 1}, /*age_seconds=*/2);
  const RequestId late =
      *harness.engine().Submit({1}, {.max_tokens = 1, .timeout_seconds = 3}, /*age_seconds=*/2);
  now = 11.5;
  ASSERT_TRUE(harness.Step().ok());
  EXPECT_DOUBLE_EQ(harness.answer(id).usage.seconds_queued, 3.5);
  EXPECT_DOUBLE_EQ(harness.answer(id).usage.seconds_to_first_token, 3.5);
  EXPECT_DOUBLE_EQ(harness.answer(id).usage.seconds, 3.5);
  EXPECT_TRUE(absl::IsDeadlineExceeded(harness.answer(late).error)) << harness.answer(late).error;
}

}  // namespace
}  // namespace espalier
