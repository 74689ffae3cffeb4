// Tests what follows lost workers, failed loads and waiting.
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "server/inference/remote/remote_model_runner_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Captures the log. Create and read it while no other thread logs.
class Log {
 public:
  Log() { Sinks().push_back(std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)); }
  ~Log() { Sinks().pop_back(); }

  int Lines(const std::string& with) const {
    int lines = 0;
    for (absl::string_view line : absl::StrSplit(text_.str(), '\n')) {
      lines += absl::StrContains(line, with) ? 1 : 0;
    }
    return lines;
  }

 private:
  static std::vector<spdlog::sink_ptr>& Sinks() { return spdlog::default_logger()->sinks(); }

  std::ostringstream text_;
};

TEST_F(RemoteModelRunnerTest, LostWorkerFailsOpenStepsAndModelReloads) {
  auto first = AddWorker();
  AddWorker();
  AddWorker();
  auto runner = CreatePipeline();
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->cache_generation(), 1u);
  first->Set(&ScriptedWorker::frozen);
  ASSERT_TRUE((*runner)->Begin(Row(0)).ok());
  ASSERT_TRUE((*runner)->Begin(Row(1)).ok());
  first->Set(&ScriptedWorker::dead);
  RunnerOutput logits;
  EXPECT_EQ((*runner)->End(&logits).code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Within(absl::Seconds(20), [&] {
    const auto now = (*runner)->placement();
    return now.state == "ready" && now.workers != std::vector<std::string>{"w1", "w2"};
  }));
  // The model is loaded again; open steps belong to the old session.
  EXPECT_EQ((*runner)->cache_generation(), 1u);
  EXPECT_EQ((*runner)->End(&logits).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*runner)->cache_generation(), 2u);
  EXPECT_TRUE(StepOf(**runner, 0).ok());
}

// Regression: requests that came during the first load ended at the next step, as if their cache
// were lost.
TEST_F(RemoteModelRunnerTest, LoadBeforeTheFirstStepKeepsTheGeneration) {
  auto runner = Create(1, /*may_wait=*/true);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->cache_generation(), 0u);
  AddWorker();
  ASSERT_TRUE(Within(absl::Seconds(20), [&] { return (*runner)->placement().state == "ready"; }));
  RunnerOutput logits;
  EXPECT_TRUE((*runner)->Step(Row(0), &logits).ok());
  EXPECT_EQ((*runner)->cache_generation(), 0u);
  EXPECT_TRUE(StepOf(**runner, 1).ok());
}

TEST_F(RemoteModelRunnerTest, DeadWorkerFailsTheStepAndModelReloadsWithEmptyCache) {
  AddWorker();
  auto second = AddWorker();
  auto runner = Create(2);
  ASSERT_TRUE(runner.ok()) << runner.status();
  ASSERT_TRUE(StepOf(**runner, 0).ok());
  const uint64_t generation = (*runner)->cache_generation();
  second->Set(&ScriptedWorker::dead);
  RunnerOutput logits;
  const absl::Status status = (*runner)->Step(Row(1), &logits);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("w2"));
  // One worker is left: the model shows that it waits, and steps fail at once.
  EXPECT_TRUE(Within(absl::Seconds(5), [&] {
    return absl::StrContains((*runner)->placement().state, "waiting: model 'lm' needs 2 idle");
  })) << (*runner)->placement().state;
  EXPECT_TRUE((*runner)->placement().workers.empty());
  EXPECT_EQ(StepOf(**runner, 1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*runner)->cache_generation(), generation);
  AddWorker();
  EXPECT_TRUE(Within(absl::Seconds(5), [&] { return (*runner)->placement().state == "ready"; }));
  EXPECT_EQ((*runner)->placement().workers, (std::vector<std::string>{"w1", "w3"}));
  EXPECT_EQ((*runner)->Step(Row(1), &logits).code(), absl::StatusCode::kUnavailable)
      << "before the generation was asked for";
  EXPECT_NE((*runner)->cache_generation(), generation);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(StepOf(**runner, i).ok());
}

TEST_F(RemoteModelRunnerTest, AWorkerWhoseLeaseEndsBetweenStepsIsReplaced) {
  AddWorker();
  auto runner = Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  ASSERT_TRUE(StepOf(**runner, 0).ok());
  const uint64_t generation = (*runner)->cache_generation();
  clock_.Advance(absl::Seconds(11));
  AddWorker();
  EXPECT_TRUE(Within(absl::Seconds(5), [&] {
    return (*runner)->placement().workers == std::vector<std::string>{"w2"};
  }));
  EXPECT_NE((*runner)->cache_generation(), generation);
  EXPECT_TRUE(StepOf(**runner, 0).ok());
}

TEST_F(RemoteModelRunnerTest, AModelThatIsStillLoadingCanBeUnloaded) {
  auto first = AddWorker(), second = AddWorker();
  second->Set(&ScriptedWorker::frozen);
  auto runner = Create(2, /*may_wait=*/true);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ(StepOf(**runner, 0).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Within(absl::Seconds(5), [&] { return first->Is(&ScriptedWorker::loaded); }));
  const absl::Time begin = absl::Now();
  runner->reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_FALSE(first->Is(&ScriptedWorker::loaded));
  // The unresponsive worker gets no work before it rejoins.
  EXPECT_EQ(Idle(), 1);
}

TEST_F(RemoteModelRunnerTest, FailedLoadBacksOffAndLogsOnce) {
  const Log log;
  auto worker = AddWorker();
  worker->Set(&ScriptedWorker::cannot_load);
  auto runner = Create(1, /*may_wait=*/true);
  ASSERT_TRUE(runner.ok()) << runner.status();
  int loadings = 0;
  ASSERT_TRUE(AwaitFailedLoads(**runner, *worker, ++loadings));
  EXPECT_THAT((*runner)->placement().state, HasSubstr("model.safetensors is torn"));
  for (const int seconds : {1, 4, 10, 10}) {
    SCOPED_TRACE(seconds);
    Pass(absl::Seconds(seconds) - absl::Milliseconds(1));
    EXPECT_TRUE(AwaitLooks(**runner));
    EXPECT_EQ(worker->Is(&ScriptedWorker::loadings), loadings);
    Pass(absl::Milliseconds(1));
    ASSERT_TRUE(AwaitFailedLoads(**runner, *worker, ++loadings));
  }
  worker->Reset(&ScriptedWorker::cannot_load);
  Pass(absl::Seconds(10));
  ASSERT_TRUE(Within(absl::Seconds(10), [&] { return (*runner)->placement().state == "ready"; }));
  // After a success, the backoff starts anew.
  auto other = AddWorker();
  other->Set(&ScriptedWorker::cannot_load);
  registry_.Suspect(leases_[0]);
  ASSERT_TRUE(AwaitFailedLoads(**runner, *other, 1));
  Pass(absl::Seconds(1));
  EXPECT_TRUE(AwaitFailedLoads(**runner, *other, 2));
  runner->reset();
  EXPECT_EQ(log.Lines("w1 (n1): model.safetensors is torn"), 1);
  EXPECT_EQ(log.Lines("w2 (n2): model.safetensors is torn"), 1);
}

TEST_F(RemoteModelRunnerTest, WaitingModelLoadsOnceWorkersJoin) {
  auto runner = Create(1, /*may_wait=*/true);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ(StepOf(**runner, 0).code(), absl::StatusCode::kUnavailable);
  AddWorker();
  EXPECT_TRUE(Within(absl::Seconds(5), [&] { return (*runner)->placement().state == "ready"; }));
  EXPECT_TRUE(StepOf(**runner, 0).ok());
}

// What a request has computed is on the workers that it began on.
TEST_F(RemoteModelRunnerTest, AModelLeavesADrainingWorkerOnceNoRequestRuns) {
  auto first = AddWorker();
  auto runner = Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(StepOf(**runner, i).ok());
  ASSERT_TRUE(registry_.Drain(leases_[0]).ok());
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_EQ((*runner)->placement().workers, (std::vector<std::string>{"w1"}))
      << "no room elsewhere";
  EXPECT_FALSE((*runner)->is_to_move());

  auto second = AddWorker();
  ASSERT_TRUE(Within(absl::Seconds(10), [&] { return (*runner)->is_to_move(); }));
  EXPECT_EQ((*runner)->placement().state, "ready");
  EXPECT_EQ((*runner)->placement().workers, (std::vector<std::string>{"w2"}));
  // The engine asks for no generation as long as a request runs.
  RunnerOutput logits;
  for (int i = 3; i < 6; ++i) {
    Pass(absl::Seconds(2));
    absl::SleepFor(absl::Milliseconds(300));
    EXPECT_TRUE((*runner)->Step(Row(i), &logits).ok()) << i;
  }
  EXPECT_TRUE(first->Serves("serving/lm"));
  EXPECT_TRUE(registry_.IsDraining(leases_[0]));
  const uint64_t generation = (*runner)->cache_generation();
  EXPECT_FALSE((*runner)->is_to_move());
  EXPECT_TRUE(StepOf(**runner, 0).ok());
  EXPECT_NE(generation, 0u) << "prefixes are lost";
  EXPECT_TRUE(Within(absl::Seconds(10), [&] { return !first->Serves("serving/lm"); }));
  v1::HeartbeatRequest beat;
  *beat.mutable_lease() = leases_[0];
  EXPECT_TRUE(Within(absl::Seconds(10), [&] { return registry_.Heartbeat(beat)->drained(); }));
  EXPECT_TRUE(StepOf(**runner, 1).ok());
}

TEST_F(RemoteModelRunnerTest, AnIdleModelLeavesADrainingWorkerSoon) {
  auto first = AddWorker(), second = AddWorker();
  auto runner = Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  ASSERT_TRUE(StepOf(**runner, 0).ok());
  const bool on_first = (*runner)->placement().workers[0] == "w1";
  ASSERT_TRUE(registry_.Drain(leases_[on_first ? 0 : 1]).ok());
  ASSERT_TRUE(Within(absl::Seconds(10), [&] { return (*runner)->is_to_move(); }));
  Pass(absl::Seconds(4));
  auto& left = on_first ? first : second;
  EXPECT_TRUE(Within(absl::Seconds(10), [&] { return !left->Serves("serving/lm"); }));
  EXPECT_FALSE((*runner)->is_to_move()) << "nothing keeps the engine from going there";
  EXPECT_TRUE(StepOf(**runner, 0).ok());
}

TEST_F(RemoteModelRunnerTest, AWorkerThatLeavesBeforeTheMoveIsLost) {
  AddWorker();
  auto runner = Create(1);
  ASSERT_TRUE(runner.ok()) << runner.status();
  ASSERT_TRUE(StepOf(**runner, 0).ok());
  auto second = AddWorker();
  second->Set(&ScriptedWorker::cannot_load);
  ASSERT_TRUE(registry_.Drain(leases_[0]).ok());
  EXPECT_TRUE(Within(absl::Seconds(10),
                     [&] { return second->Is(&ScriptedWorker::loadings) > 0 && Idle() == 1; }));
  EXPECT_TRUE(StepOf(**runner, 1).ok()) << "it stays where it is";
  EXPECT_EQ((*runner)->placement().state, "ready");
  ASSERT_TRUE(registry_.Leave(leases_[0]).ok());
  EXPECT_TRUE(Within(absl::Seconds(10), [&] { return absl::IsUnavailable(StepOf(**runner, 2)); }));
  second->Reset(&ScriptedWorker::cannot_load);
  Pass(absl::Seconds(9));
  Pass(absl::Seconds(9));
  EXPECT_TRUE(Within(absl::Seconds(10), [&] { return StepOf(**runner, 0).ok(); }));
}

}  // namespace
}  // namespace espalier
