#include "server/inference/remote/remote_model_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/testing/fake_clock.h"
#include "serving/runner/serving_proto.h"
#include "serving/testing/fake_model_runner.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 20;

// A fake worker that runs functions instead of programs, one per job. Its KV cache starts empty
// with each load, so steps that rely on earlier contents fail.
struct ScriptedWorker {
  absl::Mutex mutex;
  absl::CondVar changed;
  bool dead = false;    // streams break, calls fail
  bool frozen = false;  // no answers
  bool loaded = false;
  bool cannot_load = false;
  int loadings = 0;  // failed ones included
  double rendezvous_timeout_seconds = 0;
  int hidden = 0;
  int lost_numbers = 0;     // hidden-state values not sent
  int shifted_choices = 0;  // offset added to each choice sent
  std::map<std::string, std::unique_ptr<FakeModelRunner>> models;  // by job

  bool Serves(const std::string& job) {
    absl::MutexLock lock(&mutex);
    return models.count(job) > 0;
  }
  void Set(bool ScriptedWorker::*what) {
    absl::MutexLock lock(&mutex);
    this->*what = true;
    changed.SignalAll();
  }
  void Reset(bool ScriptedWorker::*what) {
    absl::MutexLock lock(&mutex);
    this->*what = false;
  }
  template <typename T>
  T Is(T ScriptedWorker::*what) {
    absl::MutexLock lock(&mutex);
    return this->*what;
  }
};

class ScriptedClient : public WorkerClient {
 public:
  explicit ScriptedClient(std::shared_ptr<ScriptedWorker> worker) : worker_(std::move(worker)) {}

  absl::StatusOr<v1::StartServingReply> StartServing(const v1::StartServingRequest& request,
                                                     absl::Duration) override {
    absl::MutexLock lock(&worker_->mutex);
    if (absl::Status s = Answer(); !s.ok()) return s;
    ++worker_->loadings;
    worker_->rendezvous_timeout_seconds = request.rendezvous_timeout_seconds();
    if (worker_->cannot_load) return absl::DataLossError("model.safetensors is torn");
    worker_->loaded = true;
    RunnerLimits limits = FakeModelRunner::LargeLimits(kVocabulary);
    limits.hidden = worker_->hidden;
    worker_->models[request.attempt().job_id()] =
        std::make_unique<FakeModelRunner>(limits, HashModel(7, kVocabulary));
    return v1::StartServingReply();
  }

  std::unique_ptr<ServingStream> ServingSteps() override { return std::make_unique<Stream>(this); }

  absl::Status Stop(const v1::StopRequest& request, absl::Duration) override {
    absl::MutexLock lock(&worker_->mutex);
    if (worker_->dead) return absl::UnavailableError("connection refused");
    if (worker_->frozen) return absl::DeadlineExceededError("no answer");
    worker_->models.erase(request.attempt().job_id());
    worker_->loaded = !worker_->models.empty();
    return absl::OkStatus();
  }

  void Cancel() override {
    absl::MutexLock lock(&worker_->mutex);
    cancelled_ = true;
    worker_->changed.SignalAll();
  }

  absl::StatusOr<v1::LoadProgramReply> LoadProgram(const v1::LoadProgramRequest&,
                                                   absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::Status Run(const v1::RunRequest&,
                   const std::function<void(const v1::RunEvent&)>&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::MeasureReply> Measure(const v1::MeasureRequest&, absl::Duration) override {
    return absl::UnimplementedError("");
  }

 private:
  class Stream : public ServingStream {
   public:
    explicit Stream(ScriptedClient* client) : client_(client) {}
    bool Write(const v1::ServingStep& step) override {
      absl::MutexLock lock(&client_->worker_->mutex);
      if (client_->cancelled_ || client_->worker_->dead) return false;
      steps_.push_back(step);
      client_->worker_->changed.SignalAll();
      return true;
    }
    bool Read(v1::ServingResult* result) override {
      absl::MutexLock lock(&client_->worker_->mutex);
      while (client_->Answer().ok() && steps_.empty()) {
        client_->worker_->changed.Wait(&client_->worker_->mutex);
      }
      if (!client_->Answer().ok()) return false;
      const v1::ServingStep step = std::move(steps_.front());
      steps_.pop_front();
      result->Clear();
      result->set_number(step.number());
      if (step.number() == 0) {
        job_ = step.attempt().job_id();
        return true;
      }
      RunnerBatch batch;
      absl::Status status = TakeBatch(step, &batch);
      RunnerOutput logits;
      if (status.ok()) status = client_->worker_->models.at(job_)->Step(batch, &logits);
      if (!status.ok()) {
        result->set_refused(std::string(status.message()));
      } else {
        result->set_logits(logits.values.data(), logits.values.size() * sizeof(float));
        for (auto& row : logits.choices) {
          for (TokenProbability& choice : row) choice.token += client_->worker_->shifted_choices;
        }
        SetChoices(logits, result);
        const size_t lost = static_cast<size_t>(client_->worker_->lost_numbers);
        const size_t sent = logits.hidden.size() - std::min(lost, logits.hidden.size());
        result->set_hidden(logits.hidden.data(), sent * sizeof(float));
      }
      return true;
    }
    absl::Status Finish() override {
      absl::MutexLock lock(&client_->worker_->mutex);
      return client_->cancelled_ ? absl::CancelledError("cancelled")
                                 : absl::UnavailableError("socket closed");
    }

   private:
    ScriptedClient* client_;
    std::string job_;
    std::deque<v1::ServingStep> steps_;
  };

  // Blocks while the worker is frozen.
  absl::Status Answer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(worker_->mutex) {
    while (worker_->frozen && !cancelled_ && !worker_->dead) {
      worker_->changed.Wait(&worker_->mutex);
    }
    if (cancelled_) return absl::CancelledError("cancelled");
    return worker_->dead ? absl::UnavailableError("socket closed") : absl::OkStatus();
  }

  const std::shared_ptr<ScriptedWorker> worker_;
  bool cancelled_ = false;
};

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

class RemoteModelRunnerTest : public ::testing::Test {
 protected:
  std::shared_ptr<ScriptedWorker> AddWorker(int64_t memory = 1 << 20, double bandwidth = 1e9) {
    const std::string address = absl::StrCat("127.0.0.1:", workers_.size() + 1);
    auto worker = std::make_shared<ScriptedWorker>();
    {
      absl::MutexLock lock(&mutex_);
      workers_[address] = worker;
    }
    v1::JoinRequest request;
    request.set_name(absl::StrCat("n", workers_.size()));
    request.set_address(address);
    request.set_protocol_version(kProtocolVersion);
    request.mutable_device()->set_kind(v1::Device::CPU);
    request.mutable_device()->set_memory_bytes(memory);
    request.mutable_device()->set_matmul_flops(1e9);
    request.mutable_device()->set_memory_bandwidth(bandwidth);
    absl::StatusOr<v1::Lease> lease = registry_.Join(request);
    EXPECT_TRUE(lease.ok()) << lease.status();
    leases_.push_back(*lease);
    return worker;
  }

  absl::StatusOr<std::unique_ptr<RemoteModelRunner>> Create(int ranks, bool may_wait = false,
                                                            std::vector<std::string> preferred = {},
                                                            int hidden = 0) {
    RemoteModel model = ModelOf("lm", ranks);
    model.limits.hidden = hidden;
    model.preferred = std::move(preferred);
    return Start(std::move(model), may_wait);
  }

  // A pipeline with two concurrent steps.
  absl::StatusOr<std::unique_ptr<RemoteModelRunner>> CreatePipeline() {
    RemoteModel model = ModelOf("lm", 2);
    model.limits.concurrent_steps = 2;
    return Start(std::move(model), /*may_wait=*/false);
  }

  // The LLM of a group, or an SSM of it; 1000 bytes on each worker.
  absl::StatusOr<std::unique_ptr<RemoteModelRunner>> CreateLlm(bool may_wait = false) {
    RemoteModel model = ModelOf("lm", 1);
    model.group = group_;
    return Start(std::move(model), may_wait);
  }
  absl::StatusOr<std::unique_ptr<RemoteModelRunner>> CreateSsm(bool prefers_shared = false,
                                                               bool may_wait = false) {
    RemoteModel model = ModelOf("lm/ssm0", 1);
    model.group = group_;
    model.drafts = true;
    model.prefers_shared = prefers_shared;
    return Start(std::move(model), may_wait);
  }

  static RemoteModel ModelOf(const std::string& name, int ranks) {
    RemoteModel model;
    model.name = name;
    model.folder = "/models/lm";
    model.limits = FakeModelRunner::LargeLimits(kVocabulary);
    model.max_output_rows = 8;
    for (int r = 0; r < ranks; ++r) {
      v1::Program program;
      program.set_arena_bytes(1000);
      if (r == 0) (*program.mutable_outputs())["logits"] = 0;
      model.programs.push_back(program);
    }
    return model;
  }

  absl::StatusOr<std::unique_ptr<RemoteModelRunner>> Start(RemoteModel model, bool may_wait) {
    ServingCluster cluster;
    cluster.workers = &registry_;
    cluster.rendezvous = &rendezvous_;
    cluster.dial = [this](const std::string& address) {
      absl::MutexLock lock(&mutex_);
      return std::make_unique<ScriptedClient>(workers_.at(address));
    };
    cluster.next_attempt = [this]() -> absl::StatusOr<uint64_t> { return ++attempts_; };
    cluster.now = [this] {
      ++looks_;
      return clock_.Now();
    };
    cluster.step_timeout = step_timeout_;
    return RemoteModelRunner::Create(std::move(cluster), std::move(model), may_wait);
  }

  // Row `position` of a sequence whose token i is i: its logits depend on all rows before it.
  static RunnerBatch Row(int position) {
    RunnerBatch batch;
    batch.tokens = {position % kVocabulary};
    batch.positions = {position};
    batch.slots = {position};
    batch.row_sequence = {0};
    batch.row_prefix = {position + 1};
    batch.ancestor_start = {0, 0};
    batch.sequence_start = {0, position + 1};
    for (int i = 0; i <= position; ++i) batch.sequence_slots.push_back(i);
    batch.logit_rows = {0};
    return batch;
  }

  static absl::Status StepOf(RemoteModelRunner& runner, int position) {
    runner.cache_generation();
    RunnerOutput logits;
    absl::Status status = runner.Step(Row(position), &logits);
    if (!status.ok()) return status;
    std::vector<int> path;
    for (int i = 0; i <= position; ++i) path.push_back(i);
    EXPECT_EQ(logits.values, HashModel(7, kVocabulary)(path));
    return status;
  }

  int Idle() { return static_cast<int>(registry_.Idle().size()); }

  // Advances time while the workers renew their leases.
  void Pass(absl::Duration time) {
    clock_.Advance(time);
    for (const v1::Lease& lease : leases_) {
      v1::HeartbeatRequest beat;
      *beat.mutable_lease() = lease;
      registry_.Heartbeat(beat).IgnoreError();
    }
  }
  // Waits until the worker has seen `loadings` loads and the last has failed.
  bool AwaitFailedLoads(const RemoteModelRunner& runner, ScriptedWorker& worker, int loadings) {
    return Within(absl::Seconds(10), [&] {
      return worker.Is(&ScriptedWorker::loadings) == loadings &&
             absl::StartsWith(runner.placement().state, "waiting: ");
    });
  }
  // Waits until the runner has polled a few times, while requests fail.
  bool AwaitLooks(RemoteModelRunner& runner) {
    const int wanted = looks_ + 3;
    return Within(absl::Seconds(10), [&] {
      EXPECT_EQ(StepOf(runner, 0).code(), absl::StatusCode::kUnavailable);
      return looks_ >= wanted;
    });
  }

  template <typename Condition>
  bool Within(absl::Duration time, Condition&& condition) {
    for (const absl::Time end = absl::Now() + time; absl::Now() < end;) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return condition();
  }

  FakeClock clock_;
  uint64_t epoch_ = 0;
  std::atomic<uint64_t> attempts_{0};
  std::atomic<int> looks_{0};  // polls, counted at the clock
  absl::Duration step_timeout_ = absl::Minutes(5);
  std::shared_ptr<ServingGroup> group_ = std::make_shared<ServingGroup>("lm", /*here=*/false);
  WorkerRegistry registry_{&clock_, absl::Seconds(10),
                           [this]() -> absl::StatusOr<uint64_t> { return ++epoch_; }};
  Rendezvous rendezvous_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<ScriptedWorker>> workers_;
  std::vector<v1::Lease> leases_;
};

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

}  // namespace
}  // namespace espalier
