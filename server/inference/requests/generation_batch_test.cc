// Several prompts of one request on a real engine.
#include <algorithm>
#include <atomic>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/field_error.h"
#include "server/inference/requests/generation_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::vector<v1::GenerateRequest> Prompts(int count) {
  std::vector<v1::GenerateRequest> prompts(count);
  for (int i = 0; i < count; ++i) {
    prompts[i].set_text(std::string(1 + i % 3, static_cast<char>('a' + i % 20)));
  }
  return prompts;
}

// Regression: all prompts were submitted at once, and more than the queue holds never fit.
TEST(GenerationBatch, PromptsOfABatchComeAsTheQueueHasRoom) {
  const auto model = Model(/*max_queue=*/6);
  ModelServer models({});
  v1::GenerateRequest request = Request("", 9);
  request.set_n(4);
  request.set_echo(true);
  request.clear_text();
  const std::vector<v1::GenerateRequest> prompts = Prompts(40);
  std::vector<Answers> all(prompts.size());
  size_t ended = 0;
  absl::Notification done;
  const auto batch = StartBatch(request, prompts, model, &models, nullptr,
                                [&](int prompt, const auto& reply, bool last) {
                                  all[prompt].Listener()(reply, last);
                                  if (!last) return;
                                  if (++ended == prompts.size() || !reply.ok()) done.Notify();
                                });
  ASSERT_TRUE(batch.ok()) << batch.status();
  done.WaitForNotification();
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(all[i].error.ok()) << i << ": " << all[i].error;
    EXPECT_EQ(all[i].reasons.size(), 4u) << i;
    v1::GenerateRequest alone = request;
    alone.MergeFrom(prompts[i]);
    Answers same;
    Finish(alone, model, &same);
    EXPECT_EQ(same.texts, all[i].texts) << i;
  }
}

TEST(GenerationBatch, MomentarilyFullQueueFailsNothingSubmitted) {
  constexpr int kQueue = 6;
  const auto model = Model(kQueue);
  ModelServer models({});
  int ended = 0;
  absl::Status error;
  absl::Notification done;
  const auto batch = StartBatch(
      Request("", 9), Prompts(20), model, &models, nullptr, [&](int, const auto& reply, bool last) {
        if (!reply.ok()) error = reply.status();
        if (!reply.ok()) done.Notify();
        if (!reply.ok() || !last) return;
        // Before the next one comes.
        for (int i = 0; ended == 0 && i < kQueue; ++i) {
          EXPECT_TRUE(
              model->engine
                  ->Submit(std::vector<int>{1}, {.max_tokens = 3}, [](const RequestEvent&) {})
                  .ok());
        }
        if (++ended == 20) done.Notify();
      });
  ASSERT_TRUE(batch.ok()) << batch.status();
  done.WaitForNotification();
  EXPECT_TRUE(error.ok()) << error;
  EXPECT_EQ(ended, 20);
}

// For the whole batch, not per prompt from its submission.
TEST(GenerationBatch, ABatchHasOneTimeout) {
  const auto model = Model();
  ModelServer models({});
  v1::GenerateRequest request = Request("", 200);
  request.set_timeout_seconds(0.05);
  absl::Status error;
  absl::Notification done;
  const auto batch =
      StartBatch(request, Prompts(256), model, &models, nullptr, [&](int, const auto& reply, bool) {
        if (done.HasBeenNotified()) return;
        absl::SleepFor(absl::Milliseconds(2));
        if (reply.ok()) return;
        error = reply.status();
        done.Notify();
      });
  ASSERT_TRUE(batch.ok()) << batch.status();
  const absl::Time start = absl::Now();
  done.WaitForNotification();
  EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(GenerationBatch, ACancelledBatchSubmitsNoMore) {
  const auto model = Model();
  ModelServer models({});
  absl::Notification first;
  std::atomic<int> begun = 0, errors = 0;
  const auto batch = StartBatch(Request("", 100), Prompts(200), model, &models, nullptr,
                                [&](int prompt, const auto& reply, bool) {
                                  if (prompt >= begun) begun = prompt + 1;
                                  if (!reply.ok()) ++errors;
                                  if (!first.HasBeenNotified()) first.Notify();
                                });
  ASSERT_TRUE(batch.ok()) << batch.status();
  first.WaitForNotification();
  (*batch)->Cancel();
  for (int i = 0; model->engine->open() > 0 && i < 2000; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(model->engine->open(), 0);
  EXPECT_LT(begun, 200);
  EXPECT_EQ(errors, 0);
}

TEST(GenerationBatch, OnePromptOfABatchThatCannotBeReadRefusesAll) {
  const auto model = Model();
  ModelServer models({});
  std::vector<v1::GenerateRequest> prompts = Prompts(3);
  prompts[2].set_text(std::string(static_cast<size_t>(model->engine->context()), 'a'));
  const auto batch = StartBatch(Request("", 5), prompts, model, &models, nullptr,
                                [](int, const auto&, bool) { FAIL() << "was started"; });
  EXPECT_EQ(FieldOf(batch.status()), "prompt");
  EXPECT_EQ(model->engine->open(), 0);
}

TEST(GenerationBatch, MoreLogprobsThanThereIsRoomForAreRefusedByName) {
  const auto model = Model();  // with a context of 256 tokens
  ModelServer models({});
  v1::GenerateRequest request = Request("", 1000);
  request.clear_text();
  request.set_n(kMaxAnswers);
  request.set_logprobs(20);
  const auto start = [&](int prompts) {
    const auto batch = StartBatch(request, Prompts(prompts), model, &models, nullptr,
                                  [](int, const auto&, bool) {});
    if (batch.ok()) (*batch)->Cancel();
    return batch.status();
  };
  EXPECT_TRUE(start(12).ok());
  EXPECT_EQ(FieldOf(start(20)), "logprobs");
  EXPECT_THAT(start(20).message(), HasSubstr("at most 8388608"));
  request.clear_logprobs();
  EXPECT_TRUE(start(20).ok());
}

}  // namespace
}  // namespace espalier
