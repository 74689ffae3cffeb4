// Concurrent steps: the pipeline stages stay busy, and no slot or request is lost, whatever happens
// to requests whose step is in flight.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serving/engine/engine_test_util.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 12;

FakeModel Llm() { return HashModel(1, kVocabulary, 5); }

class EnginePipeline : public testing::Test {
 protected:
  EnginePipeline() : harness_(kVocabulary) { harness_.SetLlm(Llm()); }

  void Start(int concurrent_steps, EngineOptions options = {}, const char* expansion = "") {
    harness_.SetConcurrentSteps(concurrent_steps);
    options.prefix_cache = prefix_cache_;
    const absl::Status status = harness_.Start(std::move(options), expansion);
    ASSERT_TRUE(status.ok()) << status;
  }
  RequestId Submit(int prompt, int tokens, double timeout = 0) {
    absl::StatusOr<RequestId> id = harness_.engine().Submit(
        std::vector<int>(prompt, 1),
        {.max_tokens = tokens, .ignore_eos = true, .timeout_seconds = timeout});
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }
  std::vector<int> Expected(int prompt, int tokens) {
    return GreedyContinuation(Llm(), std::vector<int>(prompt, 1), tokens);
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) ASSERT_TRUE(harness_.Step().ok());
  }

  EngineHarness harness_;
  bool prefix_cache_ = false;
};

class EqualPrompts : public EnginePipeline, public testing::WithParamInterface<int> {};

// In one step and in chunks: the first request computes the shared prefix, though more steps may
// start before its own ends.
INSTANTIATE_TEST_SUITE_P(MaxTokensPerBatch, EqualPrompts, testing::Values(256, 64));

TEST_P(EqualPrompts, EqualPromptsAreComputedOnce) {
  prefix_cache_ = true;
  Start(4, {.max_tokens_per_batch = GetParam()});
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(Submit(200, 4));
  harness_.RunToEnd();
  for (const RequestId id : ids) {
    EXPECT_EQ(harness_.answer(id).tokens, Expected(200, 4));
    // All but the last token, or the blocks that the chunks filled.
    const int cached = GetParam() >= 200 ? 199 : 192;
    EXPECT_EQ(harness_.answer(id).usage.cached_tokens, id == ids[0] ? 0 : cached);
  }
}

TEST_F(EnginePipeline, RequestsAreSpreadOverConcurrentSteps) {
  Start(3);
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(Submit(1 + i, 60));
  harness_.RunToEnd();
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(harness_.answer(ids[i]).tokens, Expected(1 + i, 60));
  }
  const PipelinedModelRunner& llm = harness_.pipelined();
  EXPECT_EQ(llm.most(), 3);
  EXPECT_GT(static_cast<double>(llm.together()), 0.95 * static_cast<double>(llm.steps()));
  // Two of six requests per step: 60 tokens in about 3 * 60 steps.
  EXPECT_THAT(llm.steps(), testing::AllOf(testing::Ge(170), testing::Le(200)));
}

TEST_F(EnginePipeline, OneRequestIsInOneStepAtATime) {
  Start(3);
  const RequestId id = Submit(4, 20);
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(id).tokens, Expected(4, 20));
  EXPECT_EQ(harness_.pipelined().steps(), 20);
  EXPECT_EQ(harness_.pipelined().together(), 0);
}

TEST_F(EnginePipeline, ChunksOfAPromptFollowEachOtherAtOnce) {
  Start(3, {.max_tokens_per_batch = 10});
  const RequestId id = Submit(95, 5);
  Steps(3);
  EXPECT_EQ(harness_.pipelined().open(), 2);  // three were started, the first has ended
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(id).tokens, Expected(95, 5));
  EXPECT_EQ(harness_.pipelined().most(), 3);
  EXPECT_EQ(harness_.pipelined().steps(), 10 + 4);
}

TEST_F(EnginePipeline, TreesOfOneGroupAreDraftedWhileAnothersAreVerified) {
  harness_.AddSsm(Llm());
  Start(2, {}, "1,2,1");
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(Submit(3 + i, 60));
  harness_.RunToEnd();
  for (int i = 0; i < 4; ++i) {
    const Answer& answer = harness_.answer(ids[i]);
    EXPECT_EQ(answer.tokens, Expected(3 + i, 60));
    EXPECT_EQ(answer.usage.verification_steps, 15);  // three drafted tokens and one more in each
  }
  EXPECT_GT(harness_.pipelined().together(), 20);
}

TEST_F(EnginePipeline, CancelledInTheMiddleOfAStep) {
  Start(2);
  const RequestId gone = Submit(5, 50), stays = Submit(6, 50);
  Steps(6);
  ASSERT_GT(harness_.pipelined().open(), 0);
  ASSERT_TRUE(harness_.engine().Cancel(gone));
  ASSERT_TRUE(harness_.engine().CheckInvariants().ok());
  const RequestId late = Submit(7, 50);  // in the slots that became free
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(gone).reason, FinishReason::kCancelled);
  const int had = static_cast<int>(harness_.answer(gone).tokens.size());
  EXPECT_EQ(harness_.answer(gone).tokens, Expected(5, had));
  EXPECT_EQ(harness_.answer(stays).tokens, Expected(6, 50));
  EXPECT_EQ(harness_.answer(late).tokens, Expected(7, 50));
}

TEST_F(EnginePipeline, IsIdleOnlyWhenTheLastStepHasEnded) {
  Start(2);
  const RequestId a = Submit(5, 50), b = Submit(6, 50);
  Steps(6);
  harness_.engine().Cancel(a);
  harness_.engine().Cancel(b);
  EXPECT_FALSE(harness_.engine().idle());
  harness_.RunToEnd();
  EXPECT_EQ(harness_.pipelined().open(), 0);
}

class PipelinePriority : public EnginePipeline, public testing::WithParamInterface<int> {};

// In one step and in chunks.
TEST_P(PipelinePriority, AHigherPriorityPreemptsWhileStepsAreInFlight) {
  Start(2, {.max_requests = 4, .max_tokens_per_batch = GetParam()});
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(Submit(40 + i, 60));
  Steps(20);
  RequestOptions options{.max_tokens = 5, .ignore_eos = true};
  options.priority = -1;
  const RequestId urgent = *harness_.engine().Submit(std::vector<int>(7, 1), options);
  int steps = 0;
  while (harness_.answer(urgent).reason == FinishReason::kNone) {
    ASSERT_LT(++steps, 25);
    ASSERT_TRUE(harness_.Step().ok());
  }
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(urgent).tokens, Expected(7, 5));
  EXPECT_EQ(harness_.engine().statistics().preemptions, 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(harness_.answer(ids[i]).tokens, Expected(40 + i, 60));
}

INSTANTIATE_TEST_SUITE_P(Rows, PipelinePriority, testing::Values(256, 16));

TEST_F(EnginePipeline, AFailureEndsAllThatRanAndLeavesNothingInFlight) {
  Start(3);
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(Submit(1 + i, 60));
  Steps(8);
  harness_.llm().FailFrom(harness_.llm().steps() + 1);
  absl::Status status;
  while (status.ok()) status = harness_.Step();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness_.pipelined().open(), 0);
  EXPECT_TRUE(harness_.engine().idle());
  for (const RequestId id : ids) {
    EXPECT_EQ(harness_.answer(id).error.code(), absl::StatusCode::kUnavailable);
  }
  harness_.llm().FailFrom(0);
  const RequestId after = Submit(9, 20);
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(after).tokens, Expected(9, 20));
}

TEST_F(EnginePipeline, ALostCacheEndsWhatRanAndTheNextOnesAreServed) {
  Start(2);
  const RequestId a = Submit(5, 50), b = Submit(6, 50);
  Steps(6);
  harness_.llm().LoseCache();
  // Steps in flight with the lost cache may return anything; then all running requests end.
  while (!harness_.engine().idle()) harness_.Step().IgnoreError();
  EXPECT_FALSE(harness_.answer(a).error.ok());
  EXPECT_FALSE(harness_.answer(b).error.ok());
  const RequestId after = Submit(9, 20);
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(after).tokens, Expected(9, 20));
}

TEST_F(EnginePipeline, OutOfTimeInTheMiddleOfAStep) {
  double now = 0;
  Start(2, {.seconds = [&] { return now; }});
  const RequestId late = Submit(5, 50, /*timeout=*/2), stays = Submit(6, 50);
  Steps(6);
  now = 3;
  harness_.RunToEnd();
  EXPECT_EQ(harness_.answer(late).error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(harness_.answer(stays).tokens, Expected(6, 50));
}

TEST_F(EnginePipeline, TunedSpeculationRunsOneStepAtATime) {
  Start(4, {.concurrent_steps = 2});
  EXPECT_EQ(harness_.engine().concurrent_steps(), 2);
  Start(2, {.concurrent_steps = 5});
  EXPECT_EQ(harness_.engine().concurrent_steps(), 2);
  double now = 0;
  EngineOptions tuned{.seconds = [&] { return now += 1e-4; }};
  tuned.speculation.tune = true;
  tuned.speculation.calibration_seconds = 0;
  Start(2, tuned);
  EXPECT_EQ(harness_.engine().concurrent_steps(), 1);
  EXPECT_EQ(harness_.Start({.concurrent_steps = -1}).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
