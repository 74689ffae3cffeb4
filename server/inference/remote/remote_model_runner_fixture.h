// Serves models on scripted workers, for tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing/fake_clock.h"
#include "server/inference/remote/remote_model_runner.h"
#include "server/inference/remote/scripted_worker.h"

namespace espalier {

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
    request.set_call_key(std::string(32, 'k'));
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
    cluster.dial = [this](const Member& worker) {
      absl::MutexLock lock(&mutex_);
      return std::make_unique<ScriptedClient>(workers_.at(worker.address));
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

}  // namespace espalier
