// Tests steps of a model on workers: their results, order and timeouts.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/inference/remote/remote_model_runner_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST_F(RemoteModelRunnerTest, CacheGenerationCallIsOptional) {
  AddWorker();
  auto runner = Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  RunnerOutput logits;
  // without an engine, as lossless verification does
  EXPECT_TRUE((*runner)->Step(Row(0), &logits).ok());
  EXPECT_EQ(logits.values.size(), static_cast<size_t>(kVocabulary));
}

TEST_F(RemoteModelRunnerTest, StepsOfAPipelineBeginBeforeEarlierOnesHaveEnded) {
  AddWorker();
  AddWorker();
  auto runner = CreatePipeline();
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->limits().concurrent_steps, 2);
  EXPECT_EQ((*runner)->cache_generation(), 1u);
  RunnerOutput logits;
  const auto expect = [&](int position) {
    ASSERT_TRUE((*runner)->End(&logits).ok());
    std::vector<int> path;
    for (int i = 0; i <= position; ++i) path.push_back(i);
    EXPECT_EQ(logits.values, HashModel(7, kVocabulary)(path)) << position;
  };
  ASSERT_TRUE((*runner)->Begin(Row(0)).ok());
  ASSERT_TRUE((*runner)->Begin(Row(1)).ok());
  expect(0);
  ASSERT_TRUE((*runner)->Begin(Row(2)).ok());
  expect(1);
  // A rejected step is answered in its turn and affects no other.
  RunnerBatch bad = Row(3);
  bad.tokens = {kVocabulary};
  ASSERT_TRUE((*runner)->Begin(bad).ok());
  expect(2);
  ASSERT_TRUE((*runner)->Begin(Row(3)).ok());
  EXPECT_EQ((*runner)->End(&logits).code(), absl::StatusCode::kInvalidArgument);
  expect(3);
  EXPECT_TRUE(StepOf(**runner, 4).ok());
}

TEST_F(RemoteModelRunnerTest, StepTimeoutStartsAfterThePreviousStep) {
  step_timeout_ = absl::Milliseconds(1500);
  auto worker = AddWorker();
  AddWorker();
  auto runner = CreatePipeline();
  ASSERT_TRUE(runner.ok()) << runner.status();
  (*runner)->cache_generation();
  RunnerOutput logits;
  ASSERT_TRUE((*runner)->Begin(Row(0)).ok());
  for (int i = 1; i < 4; ++i) {
    absl::SleepFor(absl::Milliseconds(800));
    ASSERT_TRUE((*runner)->Begin(Row(i)).ok());
    EXPECT_TRUE((*runner)->End(&logits).ok()) << i;
  }
  worker->Set(&ScriptedWorker::frozen);
  ASSERT_TRUE((*runner)->Begin(Row(4)).ok());
  while ((*runner)->End(&logits).ok()) {
  }
}

// As when a model is unloaded while a worker hangs: the step timeout is minutes.
TEST_F(RemoteModelRunnerTest, AnAbandonedStepEndsThoughItsWorkerHangs) {
  auto worker = AddWorker();
  auto runner = Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  worker->Set(&ScriptedWorker::frozen);
  absl::Notification ended;
  absl::Status status;
  std::thread step([&] {
    status = StepOf(**runner, 0);
    ended.Notify();
  });
  EXPECT_FALSE(ended.WaitForNotificationWithTimeout(absl::Milliseconds(200)));
  (*runner)->Abandon();
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
  step.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(RemoteModelRunnerTest, WorkersReturnChoicesInsteadOfLogitsWherePossible) {
  auto worker = AddWorker();
  auto runner = Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  (*runner)->cache_generation();
  RunnerOutput logits;
  std::vector<int> path;
  int chosen = 0;
  for (int i = 0; i < 4; ++i) {
    RunnerBatch batch = Row(i);
    batch.row_outputs = {RunnerBatch::kToken};
    ASSERT_TRUE((*runner)->Step(batch, &logits).ok());
    path.push_back(i);
    const std::vector<float> expected = HashModel(7, kVocabulary)(path);
    if (logits.choices.empty()) {
      EXPECT_EQ(logits.values, expected);
      continue;
    }
    ++chosen;
    const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
    ASSERT_EQ(logits.choices[0].size(), 1u);
    EXPECT_EQ(logits.choices[0][0].token, best);
    EXPECT_TRUE(logits.values.empty());
  }
  EXPECT_EQ(chosen, 2);
  ASSERT_TRUE(StepOf(**runner, 4).ok());  // full logits again
  {
    absl::MutexLock lock(&worker->mutex);
    worker->shifted_choices = kVocabulary;
  }
  RunnerBatch batch = Row(5);
  batch.row_outputs = {RunnerBatch::kToken};
  const absl::Status status = (*runner)->Step(batch, &logits);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in a vocabulary of 20"));
}

TEST_F(RemoteModelRunnerTest, HiddenStatesComeWithTheLogitsOfStepsThatWantThem) {
  constexpr int kHidden = 6;
  auto worker = AddWorker();
  worker->hidden = kHidden;
  auto runner = Create(1, false, {}, kHidden);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->limits().hidden, kHidden);
  (*runner)->cache_generation();
  RunnerBatch batch = Row(0);
  RunnerOutput logits;
  ASSERT_TRUE((*runner)->Step(batch, &logits).ok());
  EXPECT_TRUE(logits.hidden.empty());
  batch.wants_hidden = true;
  ASSERT_TRUE((*runner)->Step(batch, &logits).ok());
  ASSERT_EQ(logits.values.size(), static_cast<size_t>(kVocabulary));
  EXPECT_EQ(logits.hidden,
            std::vector<float>(logits.values.begin(), logits.values.begin() + kHidden));
  worker->lost_numbers = 1;
  const absl::Status status = (*runner)->Step(batch, &logits);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("5 of 6 hidden numbers"));
}

TEST_F(RemoteModelRunnerTest, FrozenWorkerTimesOut) {
  auto worker = AddWorker();
  step_timeout_ = absl::Milliseconds(300);
  auto runner = Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  worker->Set(&ScriptedWorker::frozen);
  const absl::Time begin = absl::Now();
  const absl::Status status = StepOf(**runner, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("longer than 300ms"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

}  // namespace
}  // namespace espalier
