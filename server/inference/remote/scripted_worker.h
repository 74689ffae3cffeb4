// Fakes a worker that serves models, and its client. Tests let it freeze, die and fail to load.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/jobs/worker_client.h"
#include "serving/runner/serving_proto.h"
#include "serving/testing/fake_model_runner.h"

namespace espalier {

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
  std::unique_ptr<SessionRankStream> RunSession() override { return nullptr; }

  absl::StatusOr<v1::CheckpointAtReply> CheckpointAt(const v1::CheckpointAtRequest&,
                                                     absl::Duration) override {
    return absl::UnimplementedError("");
  }
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
  absl::StatusOr<v1::ProbeReply> Probe(const v1::ProbeRequest&, absl::Duration) override {
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

}  // namespace espalier
