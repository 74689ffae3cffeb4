// The engine on its thread: events reach their listeners, from any thread, and no request waits
// forever.
#include "server/inference/models/async_engine.h"

#include <atomic>
#include <memory>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 20;

std::unique_ptr<AsyncEngine> Host(int max_queue = 256, FakeModelRunner** llm = nullptr,
                                  FakeModel model = HashModel(1, kVocabulary)) {
  EngineParts parts;
  parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
  auto runner = std::make_unique<FakeModelRunner>(FakeModelRunner::LargeLimits(kVocabulary),
                                                  std::move(model));
  if (llm != nullptr) *llm = runner.get();
  parts.llm = std::move(runner);
  parts.ssms.push_back(std::make_unique<FakeModelRunner>(FakeModelRunner::LargeLimits(kVocabulary),
                                                         HashModel(1, kVocabulary)));
  EngineOptions options;
  options.expansion = *Expansion::Create({1, 2});
  options.max_queue = max_queue;
  options.seconds = [] { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); };
  auto engine = AsyncEngine::Create(std::move(parts), options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// A model whose steps block until released.
struct HeldModel {
  absl::Notification began, go_on;

  FakeModel model() {
    return [this](absl::Span<const int> path) {
      if (!began.HasBeenNotified()) began.Notify();
      go_on.WaitForNotification();
      return HashModel(1, kVocabulary)(path);
    };
  }
};

// Collects one request's events.
struct Collected {
  absl::Notification done;
  std::vector<int> tokens;
  RequestEvent last;

  AsyncEngine::Listener listener() {
    return [this](const RequestEvent& event) {
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
      if (!event.finished) return;
      last = event;
      done.Notify();
    };
  }
};

TEST(AsyncEngine, ManyThreadsGetTheirOwnAnswers) {
  auto engine = Host();
  std::vector<std::unique_ptr<Collected>> collected;
  for (int i = 0; i < 24; ++i) collected.push_back(std::make_unique<Collected>());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < 24; i += 4) {
        RequestOptions options;
        options.max_tokens = 30;
        options.speculate = i % 2 == 0;
        ASSERT_TRUE(engine->Submit({i % kVocabulary, 3}, options, collected[i]->listener()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 24; ++i) {
    ASSERT_TRUE(collected[i]->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(collected[i]->tokens,
              GreedyContinuation(HashModel(1, kVocabulary), {i % kVocabulary, 3}, 30));
    EXPECT_EQ(collected[i]->last.reason, FinishReason::kLength);
  }
}

TEST(AsyncEngine, ARequestThatIsNotAdmittedGetsItsErrorAsAnEvent) {
  auto engine = Host();
  Collected collected;
  ASSERT_TRUE(engine->Submit({kVocabulary + 5}, {}, collected.listener()).ok());
  ASSERT_TRUE(collected.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(collected.last.error.code(), absl::StatusCode::kInvalidArgument);
}

TEST(AsyncEngine, CancelEndsARequestAndTheRestGoOn) {
  HeldModel step;  // held until the cancellation: the fake model would be done before
  auto engine = Host(256, nullptr, step.model());
  Collected cancelled, other;
  RequestOptions longest;
  longest.max_tokens = 1 << 20;
  auto ticket = engine->Submit({1}, longest, cancelled.listener());
  RequestOptions shorter;
  shorter.max_tokens = 10;
  ASSERT_TRUE(engine->Submit({2}, shorter, other.listener()).ok());
  engine->Cancel(*ticket);
  step.go_on.Notify();
  ASSERT_TRUE(cancelled.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(cancelled.last.reason, FinishReason::kCancelled);
  ASSERT_TRUE(other.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(other.tokens.size(), 10u);
}

TEST(AsyncEngine, FailingModelEndsRequestsAndEngineLivesOn) {
  FakeModelRunner* llm = nullptr;
  auto engine = Host(256, &llm);
  llm->FailFrom(1);
  for (int i = 0; i < 2; ++i) {
    Collected collected;
    ASSERT_TRUE(engine->Submit({1}, {}, collected.listener()).ok());
    ASSERT_TRUE(collected.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(collected.last.reason, FinishReason::kError);
    EXPECT_EQ(collected.last.error.code(), absl::StatusCode::kUnavailable);
  }
}

// A hung worker keeps its lease, so a step may take minutes.
TEST(AsyncEngine, CancelAndTimeoutWorkDuringAHungStep) {
  absl::Notification submitted, hangs, go_on;
  auto engine = Host(3, nullptr, [&](absl::Span<const int> path) {
    submitted.WaitForNotification();
    // During a step with the last of the earlier requests.
    if (path[0] == 2 && path.size() == 3 && !hangs.HasBeenNotified()) {
      hangs.Notify();
      go_on.WaitForNotification();
    }
    return HashModel(1, kVocabulary)(path);
  });
  RequestOptions options, late;
  options.max_tokens = late.max_tokens = 100;
  options.speculate = late.speculate = false;
  late.timeout_seconds = 0.1;
  Collected runs, runs_late, cancelled, waits_late, dropped, waits;
  ASSERT_TRUE(engine->Submit({1}, late, runs_late.listener()).ok());
  const auto running = engine->Submit({1}, options, runs.listener());
  const auto unwanted = engine->Submit({2}, options, cancelled.listener());
  submitted.Notify();
  hangs.WaitForNotification();
  engine->Cancel(*unwanted);
  ASSERT_TRUE(engine->Submit({3}, late, waits_late.listener()).ok());
  const auto forgotten = engine->Submit({4}, options, dropped.listener());
  Collected refused, waits_too;
  ASSERT_TRUE(engine->Submit({5}, options, waits_too.listener()).ok());
  ASSERT_TRUE(engine->Submit({6}, options, refused.listener()).ok());
  ASSERT_TRUE(refused.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(refused.last.error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(refused.last.error.GetPayload(kRetryAfterPayload).has_value());
  // Cancelling frees a place.
  engine->Cancel(*forgotten);
  ASSERT_TRUE(engine->Submit({5}, options, waits.listener()).ok());
  for (Collected* one : {&runs_late, &waits_late}) {
    ASSERT_TRUE(one->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(one->last.error.code(), absl::StatusCode::kDeadlineExceeded);
  }
  for (Collected* one : {&cancelled, &dropped}) {
    ASSERT_TRUE(one->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(one->last.reason, FinishReason::kCancelled);
  }
  EXPECT_FALSE(runs.done.HasBeenNotified());
  EXPECT_FALSE(waits.done.HasBeenNotified());
  EXPECT_EQ(engine->open(), 3);
  go_on.Notify();
  ASSERT_TRUE(runs.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  ASSERT_TRUE(waits.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  ASSERT_TRUE(waits_too.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(runs.tokens, GreedyContinuation(HashModel(1, kVocabulary), {1}, 100));
  EXPECT_EQ(waits.tokens, GreedyContinuation(HashModel(1, kVocabulary), {5}, 100));
}

TEST(AsyncEngine, EndReachesRequestsDuringAHungStep) {
  HeldModel held;
  auto engine = Host(3, nullptr, held.model());
  Collected runs, waits;
  ASSERT_TRUE(engine->Submit({1}, {}, runs.listener()).ok());
  held.began.WaitForNotification();
  ASSERT_TRUE(engine->Submit({2}, {}, waits.listener()).ok());
  const absl::Status why = absl::UnavailableError("the end has come");
  engine->End(why);
  for (Collected* one : {&runs, &waits}) {
    ASSERT_TRUE(one->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(one->last.error, why);
  }
  EXPECT_EQ(engine->open(), 0);
  held.go_on.Notify();
}

TEST(AsyncEngine, CancelBeforeAdmissionFreesItsQueueSlotAtOnce) {
  HeldModel held;
  auto engine = Host(2, nullptr, held.model());
  RequestOptions options;
  options.max_tokens = 5;
  Collected runs, gone, waits, comes;
  ASSERT_TRUE(engine->Submit({1}, options, runs.listener()).ok());
  held.began.WaitForNotification();
  const auto ticket = engine->Submit({2}, options, gone.listener());
  ASSERT_TRUE(engine->Submit({3}, options, waits.listener()).ok());
  engine->Cancel(*ticket);
  engine->Cancel(*ticket);
  ASSERT_TRUE(engine->Submit({4}, options, comes.listener()).ok());
  // While the step is running.
  ASSERT_TRUE(gone.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(gone.last.reason, FinishReason::kCancelled);
  EXPECT_EQ(engine->open(), 3);
  held.go_on.Notify();
  for (Collected* one : {&runs, &waits, &comes}) {
    ASSERT_TRUE(one->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(one->last.reason, FinishReason::kLength) << one->last.error;
  }
}

TEST(AsyncEngine, HigherPriorityDisplacesLowestDuringAStep) {
  HeldModel held;
  auto engine = Host(2, nullptr, held.model());
  RequestOptions user, background;
  background.priority = 5;
  Collected runs, first, last, before;
  ASSERT_TRUE(engine->Submit({1}, user, runs.listener()).ok());
  held.began.WaitForNotification();
  ASSERT_TRUE(engine->Submit({1}, background, first.listener()).ok());
  ASSERT_TRUE(engine->Submit({1}, background, last.listener()).ok());
  ASSERT_TRUE(engine->Submit({1}, user, before.listener()).ok());
  ASSERT_TRUE(last.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_TRUE(absl::IsResourceExhausted(last.last.error)) << last.last.error;
  EXPECT_TRUE(last.last.error.GetPayload(kRetryAfterPayload).has_value());
  EXPECT_EQ(engine->open(), 3);
  held.go_on.Notify();
  for (Collected* one : {&runs, &first, &before}) {
    ASSERT_TRUE(one->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_TRUE(one->last.error.ok()) << one->last.error;
  }
}

TEST(AsyncEngine, StartedGroupIsNeverDisplaced) {
  for (const bool has_begun : {false, true}) {
    HeldModel held;
    auto engine = Host(1, nullptr, held.model());
    RequestOptions user, sibling;
    sibling.priority = 5;
    sibling.group_started = std::make_shared<std::atomic<bool>>(has_begun);
    Collected runs, waits, comes;
    ASSERT_TRUE(engine->Submit({1}, user, runs.listener()).ok());
    held.began.WaitForNotification();
    ASSERT_TRUE(engine->Submit({1}, sibling, waits.listener()).ok());
    ASSERT_TRUE(engine->Submit({1}, user, comes.listener()).ok());
    held.go_on.Notify();
    for (Collected* one : {&runs, &waits, &comes}) {
      ASSERT_TRUE(one->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    }
    EXPECT_EQ(waits.last.error.ok(), has_begun) << waits.last.error;
    EXPECT_EQ(comes.last.error.ok(), !has_begun) << comes.last.error;
  }
}

// Regression: time waited during a long step did not count towards the timeout.
TEST(AsyncEngine, TimeoutsCountFromSubmission) {
  HeldModel held;
  auto engine = Host(2, nullptr, held.model());
  Collected runs, waits;
  ASSERT_TRUE(engine->Submit({1}, {}, runs.listener()).ok());
  held.began.WaitForNotification();
  ASSERT_TRUE(engine->Submit({2}, {}, waits.listener()).ok());
  const absl::Time came = absl::Now();
  absl::SleepFor(absl::Milliseconds(50));
  const double waited = absl::ToDoubleSeconds(absl::Now() - came);
  held.go_on.Notify();
  ASSERT_TRUE(waits.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_GE(waits.last.usage.seconds_queued, waited);
  EXPECT_GE(waits.last.usage.seconds_to_first_token, waits.last.usage.seconds_queued);
  EXPECT_GE(waits.last.usage.seconds, waits.last.usage.seconds_to_first_token);
}

TEST(AsyncEngine, EndReachesOpenRequests) {
  const auto engine = Host();
  const absl::Status why = absl::UnavailableError("the end has come");
  std::vector<std::unique_ptr<Collected>> waiters;
  for (int i = 0; i < 30; ++i) {
    waiters.push_back(std::make_unique<Collected>());
    ASSERT_TRUE(engine->Submit({1, 2}, {.max_tokens = 250}, waiters.back()->listener()).ok());
  }
  engine->End(why);
  engine->End(absl::InternalError("another one"));
  for (const auto& waiter : waiters) {
    waiter->done.WaitForNotification();
    EXPECT_TRUE(waiter->last.error == why || waiter->last.error.ok()) << waiter->last.error;
  }
  EXPECT_EQ(waiters.back()->last.error, why);
  EXPECT_EQ(engine->Submit({1, 2}, {}, [](const RequestEvent&) {}).status(), why);
  while (engine->open() > 0) absl::SleepFor(absl::Milliseconds(1));
}

// Simulates a worker that does not answer.
class HangingRunner : public FakeModelRunner {
 public:
  using FakeModelRunner::FakeModelRunner;
  absl::Status Step(const RunnerBatch&, RunnerOutput*) override {
    hangs.Notify();
    abandoned_.WaitForNotification();
    return absl::UnavailableError("abandoned");
  }
  void Abandon() override { abandoned_.Notify(); }

  absl::Notification hangs;

 private:
  absl::Notification abandoned_;
};

TEST(AsyncEngine, DestructionDoesNotWaitForAStepThatHangs) {
  EngineParts parts;
  parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
  auto runner = std::make_unique<HangingRunner>(FakeModelRunner::LargeLimits(kVocabulary),
                                                HashModel(1, kVocabulary));
  HangingRunner* const llm = runner.get();
  parts.llm = std::move(runner);
  auto engine = AsyncEngine::Create(std::move(parts), {});
  ASSERT_TRUE(engine.ok()) << engine.status();
  Collected runs;
  ASSERT_TRUE((*engine)->Submit({1}, {}, runs.listener()).ok());
  llm->hangs.WaitForNotification();
  engine->reset();
  EXPECT_TRUE(runs.done.HasBeenNotified());
  EXPECT_TRUE(absl::IsUnavailable(runs.last.error)) << runs.last.error;
}

TEST(AsyncEngine, DestructionAnswersEverybody) {
  std::vector<std::unique_ptr<Collected>> collected;
  {
    auto engine = Host();
    for (int i = 0; i < 8; ++i) {
      collected.push_back(std::make_unique<Collected>());
      RequestOptions options;
      options.max_tokens = 1 << 20;
      ASSERT_TRUE(engine->Submit({i}, options, collected.back()->listener()).ok());
    }
  }
  for (const auto& request : collected) EXPECT_TRUE(request->done.HasBeenNotified());
}

}  // namespace
}  // namespace espalier
