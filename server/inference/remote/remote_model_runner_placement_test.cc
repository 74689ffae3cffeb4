// Tests which workers hold a model, alone and in a group of an LLM and its SSMs.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "server/inference/remote/remote_model_runner_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST_F(RemoteModelRunnerTest, WorkersAreBusyUntilTheModelIsUnloaded) {
  auto a = AddWorker(), b = AddWorker();
  AddWorker();
  auto runner = Create(2);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ(Idle(), 1);
  EXPECT_EQ((*runner)->placement().state, "ready");
  EXPECT_EQ((*runner)->placement().workers, (std::vector<std::string>{"w1", "w2"}));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(StepOf(**runner, i).ok());
  RunnerBatch bad = Row(3);
  bad.tokens = {kVocabulary};
  RunnerOutput logits;
  EXPECT_EQ((*runner)->Step(bad, &logits).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(StepOf(**runner, 3).ok());  // a rejected batch breaks nothing
  runner->reset();
  EXPECT_EQ(Idle(), 3);
  EXPECT_FALSE(a->Is(&ScriptedWorker::loaded));
  EXPECT_FALSE(b->Is(&ScriptedWorker::loaded));
}

TEST_F(RemoteModelRunnerTest, TheFastestWorkersAreTakenUnlessOthersWereChosen) {
  AddWorker(1 << 20, 1e9);
  AddWorker(1 << 20, 4e9);
  AddWorker(/*memory=*/999, 9e9);
  AddWorker(1 << 20, 2e9);
  const auto workers = [&](std::vector<std::string> preferred) {
    auto runner = Create(2, false, std::move(preferred));
    EXPECT_TRUE(runner.ok()) << runner.status();
    return runner.ok() ? (*runner)->placement().workers : std::vector<std::string>();
  };
  EXPECT_EQ(workers({}), (std::vector<std::string>{"w2", "w4"}));
  EXPECT_EQ(workers({"w4", "w1"}), (std::vector<std::string>{"w4", "w1"}));
  // Gone or too small: any suitable ones.
  EXPECT_EQ(workers({"w4", "w7"}), (std::vector<std::string>{"w2", "w4"}));
  EXPECT_EQ(workers({"w3", "w1"}), (std::vector<std::string>{"w2", "w4"}));
}

TEST_F(RemoteModelRunnerTest, TooFewWorkersErrorListsTheWorkers) {
  AddWorker();
  AddWorker(/*memory=*/999);
  ASSERT_TRUE(registry_.Assign({registry_.Idle()[0]}, "j1").ok());
  const absl::Status status = Create(2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 2 idle workers with 1000 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("w1 works for j1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("w2 has 999 bytes"));
  EXPECT_EQ(Idle(), 1);
}

// So that the caller can retry with a smaller KV cache.
TEST_F(RemoteModelRunnerTest, TooLittleMemoryIsResourceExhausted) {
  AddWorker(/*memory=*/999);
  const absl::Status status = Create(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("w1 has 999 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("KV cache"));
}

TEST_F(RemoteModelRunnerTest, RendezvousTimeoutEqualsLoadTimeout) {
  auto worker = AddWorker();
  auto runner = Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ(worker->Is(&ScriptedWorker::rendezvous_timeout_seconds),
            absl::ToDoubleSeconds(ServingCluster().load_timeout));
}

TEST_F(RemoteModelRunnerTest, UnloadLeavesALaterModelOfTheSameName) {
  AddWorker();
  AddWorker();
  auto first = Create(1), second = Create(1);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  first->reset();
  EXPECT_EQ(registry_.List()[0].state(), v1::WorkerInfo::IDLE);
  EXPECT_EQ(registry_.List()[1].state(), v1::WorkerInfo::BUSY);
  EXPECT_TRUE(rendezvous_.Set("serving/lm", attempts_, "key", "its ranks still meet").ok());
  EXPECT_TRUE(StepOf(**second, 0).ok());
}

TEST_F(RemoteModelRunnerTest, ModelsOfOneGroupShareAWorkerIfThereIsNoIdleOne) {
  auto worker = AddWorker(/*memory=*/2000);
  auto llm = CreateLlm(), ssm = CreateSsm();
  ASSERT_TRUE(llm.ok() && ssm.ok()) << llm.status() << ssm.status();
  EXPECT_EQ((*llm)->placement().workers, (std::vector<std::string>{"w1"}));
  EXPECT_EQ((*ssm)->placement().workers, (std::vector<std::string>{"w1"}));
  EXPECT_EQ(registry_.List()[0].job_id(), "serving/lm, serving/lm/ssm0");
  // Each has its own cache.
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(StepOf(**llm, i).ok());
    EXPECT_TRUE(StepOf(**ssm, i).ok());
  }
  // A third one does not fit, and a model without a group gets nothing.
  const absl::Status full = CreateSsm().status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("w1 has 0 bytes left beside what it holds"));
  EXPECT_THAT(std::string(Create(1).status().message()), HasSubstr("works for serving/lm"));
  // Unloaded one by one.
  ssm->reset();
  EXPECT_FALSE(worker->Serves("serving/lm/ssm0"));
  EXPECT_TRUE(StepOf(**llm, 3).ok());
  EXPECT_EQ(Idle(), 0);
  ssm = CreateSsm();
  ASSERT_TRUE(ssm.ok()) << ssm.status();
  EXPECT_TRUE(StepOf(**ssm, 0).ok()) << "with a new cache";
  llm->reset();
  EXPECT_TRUE(StepOf(**ssm, 1).ok());
  ssm->reset();
  EXPECT_EQ(Idle(), 1);
}

TEST_F(RemoteModelRunnerTest, PrefersIdleWorkersUnlessSharingWasChosen) {
  AddWorker(1 << 20, 4e9);
  AddWorker(1 << 20, 1e9);
  auto llm = CreateLlm();
  ASSERT_TRUE(llm.ok()) << llm.status();
  EXPECT_EQ((*llm)->placement().workers, (std::vector<std::string>{"w1"}));
  EXPECT_EQ((*CreateSsm())->placement().workers, (std::vector<std::string>{"w2"}));
  EXPECT_EQ((*CreateSsm(/*prefers_shared=*/true))->placement().workers,
            (std::vector<std::string>{"w1"}));
}

TEST_F(RemoteModelRunnerTest, LlmIsReplacedFirstAfterASharedWorkerIsLost) {
  auto shared = AddWorker(/*memory=*/2000);
  auto llm = CreateLlm(), ssm = CreateSsm();
  ASSERT_TRUE(llm.ok() && ssm.ok()) << llm.status() << ssm.status();
  ASSERT_TRUE(StepOf(**llm, 0).ok());
  shared->Set(&ScriptedWorker::dead);
  EXPECT_EQ(StepOf(**ssm, 0).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(StepOf(**llm, 1).code(), absl::StatusCode::kUnavailable);
  // There is memory for one of them.
  auto small = AddWorker(/*memory=*/1000);
  EXPECT_TRUE(Within(absl::Seconds(5), [&] { return (*llm)->placement().state == "ready"; }));
  EXPECT_TRUE(small->Serves("serving/lm"));
  EXPECT_TRUE(StepOf(**llm, 0).ok());
  EXPECT_TRUE(Within(absl::Seconds(5), [&] {
    return absl::StrContains((*ssm)->placement().state, "w2 has 0 bytes left");
  })) << (*ssm)->placement().state;
  AddWorker(/*memory=*/1000);
  EXPECT_TRUE(Within(absl::Seconds(5), [&] { return (*ssm)->placement().state == "ready"; }));
  EXPECT_TRUE(StepOf(**ssm, 0).ok());
}

TEST_F(RemoteModelRunnerTest, SsmYieldsItsWorkerToAWaitingLlm) {
  auto first = AddWorker(/*memory=*/1000), second = AddWorker(/*memory=*/1000);
  auto llm = CreateLlm(), ssm = CreateSsm();
  ASSERT_TRUE(llm.ok() && ssm.ok()) << llm.status() << ssm.status();
  EXPECT_TRUE(second->Serves("serving/lm/ssm0"));
  first->Set(&ScriptedWorker::dead);
  EXPECT_EQ(StepOf(**llm, 0).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Within(absl::Seconds(5), [&] { return (*llm)->placement().state == "ready"; }))
      << (*llm)->placement().state;
  EXPECT_TRUE(second->Serves("serving/lm"));
  EXPECT_FALSE(second->Serves("serving/lm/ssm0"));
  EXPECT_TRUE(StepOf(**llm, 0).ok());
  AddWorker(/*memory=*/1000);
  EXPECT_TRUE(Within(absl::Seconds(5), [&] { return (*ssm)->placement().state == "ready"; }));
}

TEST_F(RemoteModelRunnerTest, WaitingSsmTakesNoWorkerFromItsLlm) {
  auto ssm = CreateSsm(/*prefers_shared=*/false, /*may_wait=*/true);
  ASSERT_TRUE(ssm.ok()) << ssm.status();
  AddWorker(/*memory=*/1000);
  EXPECT_TRUE(Within(absl::Seconds(5), [&] {
    return absl::StrContains((*ssm)->placement().state, "takes its workers first");
  })) << (*ssm)->placement().state;
  EXPECT_EQ(Idle(), 1);
  auto llm = CreateLlm(/*may_wait=*/true);
  EXPECT_TRUE(Within(absl::Seconds(5), [&] { return (*llm)->placement().state == "ready"; }));
}

}  // namespace
}  // namespace espalier
