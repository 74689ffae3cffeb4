#include "server/inference/remote_model_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(200);
constexpr absl::Duration kLongestPause = absl::Seconds(10);
constexpr char kReady[] = "ready";

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteModelRunner>> RemoteModelRunner::Create(ServingCluster cluster,
                                                                             RemoteModel model,
                                                                             bool may_wait) {
  std::unique_ptr<RemoteModelRunner> runner(
      new RemoteModelRunner(std::move(cluster), std::move(model)));
  if (may_wait) {
    absl::MutexLock lock(&runner->mutex_);
    runner->state_ = "waiting for workers";
  } else if (absl::Status status = runner->LoadOnce(); !status.ok()) {
    return status;
  }
  runner->keeper_ = std::thread([runner = runner.get()] { runner->Keep(); });
  return runner;
}

RemoteModelRunner::~RemoteModelRunner() {
  std::shared_ptr<ServingSession> newest;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (loading_ != nullptr) loading_->Break("the model is being unloaded");
    changed_.SignalAll();
  }
  if (keeper_.joinable()) keeper_.join();
  {
    absl::MutexLock lock(&mutex_);
    newest = std::move(newest_);
  }
  if (newest != nullptr) newest->End();
}

absl::StatusOr<std::vector<Member>> RemoteModelRunner::ChooseWorkers() const {
  const size_t wanted = model_.programs.size();
  int64_t bytes = 0;
  for (const proto::Program& program : model_.programs) {
    bytes = std::max(bytes, program.arena_bytes());
  }
  std::vector<Member> large;
  for (const Member& member : cluster_.workers->Idle()) {
    if (member.device.memory_bytes() >= bytes) large.push_back(member);
  }
  std::vector<Member> preferred;
  for (const std::string& id : model_.preferred) {
    for (const Member& member : large) {
      if (member.lease.worker_id() == id) preferred.push_back(member);
    }
  }
  if (preferred.size() == wanted) return preferred;
  std::stable_sort(large.begin(), large.end(), [](const Member& a, const Member& b) {
    return a.device.memory_bandwidth() > b.device.memory_bandwidth();
  });
  // Of one kind if possible: a mixture sends everything through the hosts' memory.
  for (proto::Device::Kind kind : {proto::Device::CUDA, proto::Device::CPU}) {
    std::vector<Member> alike;
    for (const Member& member : large) {
      if (member.device.kind() == kind) alike.push_back(member);
    }
    if (alike.size() < wanted) continue;
    alike.resize(wanted);
    return alike;
  }
  if (large.size() >= wanted) {
    large.resize(wanted);
    return large;
  }
  std::vector<std::string> others;
  for (const proto::WorkerInfo& worker : cluster_.workers->List()) {
    if (worker.state() == proto::WorkerInfo::BUSY) {
      others.push_back(absl::StrCat(worker.worker_id(), " works for ", worker.job_id()));
    } else if (worker.state() == proto::WorkerInfo::IDLE &&
               worker.device().memory_bytes() < bytes) {
      others.push_back(
          absl::StrCat(worker.worker_id(), " has ", worker.device().memory_bytes(), " bytes"));
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("model '", model_.name, "' needs ", wanted, " idle workers with ", bytes,
                   " bytes of memory each; there are ", large.size(),
                   others.empty() ? "" : absl::StrCat(" (", absl::StrJoin(others, ", "), ")"),
                   ": start workers, free some, or split the model otherwise"));
}

absl::Status RemoteModelRunner::LoadOnce() {
  absl::StatusOr<std::vector<Member>> members = ChooseWorkers();
  if (!members.ok()) return members.status();
  absl::Status status = cluster_.workers->Assign(*members, ServingSession::JobId(model_));
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<ServingSession>> created =
      ServingSession::Create(cluster_, model_, *std::move(members));
  if (!created.ok()) return created.status();
  std::shared_ptr<ServingSession> session = *std::move(created);
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) session->Break("the model is being unloaded");
    loading_ = session;
    state_ = "loading";
  }
  status = session->Load();
  if (!status.ok()) session->End();
  absl::MutexLock lock(&mutex_);
  loading_.reset();
  if (!status.ok()) return status;
  newest_ = std::move(session);
  state_ = kReady;
  return absl::OkStatus();
}

bool RemoteModelRunner::SleepUnlessStopping(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  if (!stopping_) changed_.WaitWithTimeout(&mutex_, duration);
  return !stopping_;
}

void RemoteModelRunner::Keep() {
  absl::Duration pause = kTick;
  while (SleepUnlessStopping(pause)) {
    std::shared_ptr<ServingSession> session;
    {
      absl::MutexLock lock(&mutex_);
      session = newest_;
    }
    pause = kTick;
    if (session != nullptr) {
      session->Watch();
      const std::string reason = session->broken();
      if (reason.empty()) continue;
      spdlog::warn("model {}: {}; loading it again", model_.name, reason);
      {
        absl::MutexLock lock(&mutex_);
        newest_.reset();
        state_ = absl::StrCat("loading again: ", reason);
      }
      session->End();
    }
    const absl::Status status = LoadOnce();
    if (status.ok()) {
      spdlog::info("model {} is loaded on {} workers", model_.name, model_.programs.size());
      continue;
    }
    absl::MutexLock lock(&mutex_);
    state_ = absl::StrCat("waiting: ", status.message());
    // For want of workers it is no use to wait long: they may come at any time.
    if (!absl::IsFailedPrecondition(status)) pause = std::min(pause * 4, kLongestPause);
  }
}

absl::Status RemoteModelRunner::Step(const RunnerBatch& batch, RunnerLogits* logits) {
  absl::Status status = absl::UnavailableError("it is not loaded yet");
  if (current_ != nullptr) status = current_->Step(batch, logits);
  if (!absl::IsUnavailable(status)) return status;
  absl::MutexLock lock(&mutex_);
  changed_.SignalAll();
  const bool waits = newest_ == nullptr && !state_.empty();
  return absl::UnavailableError(absl::StrCat("model '", model_.name, "': ", status.message(),
                                             waits ? absl::StrCat(" (", state_, ")") : "",
                                             "; it is loaded again as soon as its workers are "
                                             "there: try again"));
}

uint64_t RemoteModelRunner::cache_generation() {
  absl::MutexLock lock(&mutex_);
  if (newest_ != nullptr && newest_ != current_) {
    current_ = newest_;
    ++generation_;
  }
  return generation_;
}

RemoteModelRunner::Placement RemoteModelRunner::placement() const {
  absl::MutexLock lock(&mutex_);
  Placement placement;
  placement.state = state_;
  if (newest_ == nullptr) return placement;
  // The keeper looks a few times a second only.
  if (const std::string reason = newest_->broken(); !reason.empty()) {
    placement.state = absl::StrCat("loading again: ", reason);
    return placement;
  }
  for (const Member& member : newest_->members()) {
    placement.workers.push_back(member.lease.worker_id());
  }
  return placement;
}

}  // namespace espalier
