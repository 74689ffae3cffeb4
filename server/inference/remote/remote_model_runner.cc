#include "server/inference/remote/remote_model_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/backoff.h"

namespace espalier {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(200);
// Backoff after a failed load.
constexpr absl::Duration kInitialBackoff = absl::Seconds(1), kMaxBackoff = absl::Seconds(10);
constexpr double kBackoffFactor = 4;
constexpr char kReady[] = "ready";
// A model that makes no step for so long runs no request.
constexpr absl::Duration kUnused = absl::Seconds(3);

// Returns the `wanted` members with the highest memory bandwidth, or fewer. Prefers a single device
// kind: a mixture communicates through host memory.
std::vector<Member> Fastest(std::vector<Member> from, size_t wanted) {
  std::stable_sort(from.begin(), from.end(), [](const Member& a, const Member& b) {
    return a.device.memory_bandwidth() > b.device.memory_bandwidth();
  });
  for (v1::Device::Kind kind : {v1::Device::CUDA, v1::Device::CPU}) {
    std::vector<Member> alike;
    for (const Member& member : from) {
      if (member.device.kind() == kind) alike.push_back(member);
    }
    if (alike.size() < wanted) continue;
    alike.resize(wanted);
    return alike;
  }
  if (from.size() > wanted) from.resize(wanted);
  return from;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteModelRunner>> RemoteModelRunner::Create(ServingCluster cluster,
                                                                             RemoteModel model,
                                                                             bool may_wait) {
  std::unique_ptr<RemoteModelRunner> runner(
      new RemoteModelRunner(std::move(cluster), std::move(model)));
  if (may_wait) {
    absl::MutexLock lock(&runner->mutex_);
    runner->state_ = "waiting for workers";
  } else {
    const absl::StatusOr<std::shared_ptr<ServingSession>> session = runner->AssignWorkers();
    if (!session.ok()) return session.status();
    if (absl::Status status = runner->Load(*session); !status.ok()) return status;
  }
  runner->reload_thread_ = std::thread([runner = runner.get()] { runner->ReloadLoop(); });
  return runner;
}

RemoteModelRunner::~RemoteModelRunner() {
  std::shared_ptr<ServingSession> newest, left;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (loading_ != nullptr) loading_->Break("the model is being unloaded");
    changed_.SignalAll();
  }
  if (reload_thread_.joinable()) reload_thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    newest = std::move(newest_);
    left = std::move(left_);
  }
  if (newest != nullptr) newest->End();
  if (left != nullptr) left->End();
}

absl::StatusOr<std::vector<Member>> RemoteModelRunner::ChooseWorkers(
    int64_t bytes, const std::vector<Member>& except) const {
  const size_t wanted = model_.programs.size();
  std::vector<WorkerRegistry::AvailableWorker> available =
      cluster_.workers->AvailableFor(model_.group != nullptr ? model_.group->name() : "");
  available.erase(std::remove_if(available.begin(), available.end(),
                                 [&](const WorkerRegistry::AvailableWorker& worker) {
                                   return absl::c_any_of(except, [&](const Member& other) {
                                     return other.address == worker.member.address;
                                   });
                                 }),
                  available.end());
  std::vector<Member> idle, shared;
  for (const WorkerRegistry::AvailableWorker& candidate : available) {
    if (candidate.bytes >= bytes) (candidate.shared ? shared : idle).push_back(candidate.member);
  }
  std::vector<Member> all = idle;
  all.insert(all.end(), shared.begin(), shared.end());
  std::vector<Member> preferred;
  for (const std::string& id : model_.preferred) {
    for (const Member& member : all) {
      if (member.lease.worker_id() == id) preferred.push_back(member);
    }
  }
  if (preferred.size() == wanted) return preferred;
  // Losing a shared worker would hit several models at once.
  std::vector<std::vector<Member>> choices = {idle, all};
  if (model_.prefers_shared) choices.insert(choices.begin(), shared);
  for (const std::vector<Member>& from : choices) {
    std::vector<Member> chosen = Fastest(from, wanted);
    if (chosen.size() == wanted) return chosen;
  }
  return TooFewWorkers(bytes, available);
}

absl::Status RemoteModelRunner::TooFewWorkers(
    int64_t bytes, const std::vector<WorkerRegistry::AvailableWorker>& available) const {
  size_t roomy = 0;
  std::vector<std::string> others;
  std::set<std::string> named;
  for (const WorkerRegistry::AvailableWorker& candidate : available) {
    const std::string& id = candidate.member.lease.worker_id();
    named.insert(id);
    if (candidate.bytes >= bytes) {
      ++roomy;
      continue;
    }
    others.push_back(absl::StrCat(id, " has ", candidate.bytes, " bytes",
                                  candidate.shared ? absl::StrCat(" left beside what it holds of '",
                                                                  model_.group->name(), "'")
                                                   : ""));
  }
  for (const v1::WorkerInfo& worker : cluster_.workers->List()) {
    if (worker.state() == v1::WorkerInfo::BUSY && named.count(worker.worker_id()) == 0) {
      others.push_back(absl::StrCat(worker.worker_id(), " works for ", worker.job_id()));
    }
  }
  const std::string there =
      absl::StrCat("model '", model_.name, "' needs ", model_.programs.size(),
                   " idle workers with ", bytes, " bytes of memory each; there are ", roomy,
                   others.empty() ? "" : absl::StrCat(" (", absl::StrJoin(others, ", "), ")"));
  if (available.size() < model_.programs.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat(there, ": start workers, free some, or split the model otherwise"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      there,
      ": start larger ones, free memory, split the model otherwise, or make its KV cache smaller"));
}

absl::StatusOr<std::shared_ptr<ServingSession>> RemoteModelRunner::AssignWorkers(
    const std::vector<Member>& except) {
  if (model_.drafts && model_.group->llm_state() != ServingGroup::LlmState::kLoaded) {
    return absl::FailedPreconditionError(absl::StrCat(
        "model '", model_.group->name(), "', for which it drafts, takes its workers first"));
  }
  int64_t bytes = 0;
  for (const v1::Program& program : model_.programs) {
    bytes = std::max(bytes, program.arena_bytes());
  }
  absl::StatusOr<std::vector<Member>> members = ChooseWorkers(bytes, except);
  if (!members.ok()) return members.status();
  return ServingSession::Create(cluster_, model_, *std::move(members), bytes);
}

absl::Status RemoteModelRunner::Load(const std::shared_ptr<ServingSession>& session) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) session->Break("the model is being unloaded");
    loading_ = session;
    if (newest_ == nullptr) state_ = "loading";
  }
  const absl::Status status = session->Load();
  if (!status.ok()) session->End();
  absl::MutexLock lock(&mutex_);
  loading_.reset();
  if (!status.ok()) return status;
  newest_ = session;
  state_ = kReady;
  if (is_llm()) model_.group->SetLlmState(ServingGroup::LlmState::kLoaded);
  return absl::OkStatus();
}

bool RemoteModelRunner::SleepUnlessStopping(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  if (!stopping_) changed_.WaitWithTimeout(&mutex_, duration);
  return !stopping_;
}

void RemoteModelRunner::ReloadLoop() {
  Backoff pause(kInitialBackoff, kMaxBackoff, kBackoffFactor);
  absl::Time next_load = absl::InfinitePast();
  std::string told;  // last logged reason
  while (SleepUnlessStopping(kPollInterval)) {
    EndLeft();
    std::shared_ptr<ServingSession> session;
    {
      absl::MutexLock lock(&mutex_);
      session = newest_;
    }
    if (session != nullptr) {
      session->Watch();
      if (model_.drafts && model_.group->llm_state() == ServingGroup::LlmState::kWaiting) {
        session->Break(absl::StrCat("model '", model_.group->name(), "' waits for its workers"));
      }
      const std::string reason = session->broken();
      if (reason.empty()) {
        MoveIfWorkerLeaves(session);
        continue;
      }
      spdlog::warn("model {}: {}; loading it again", model_.name, reason);
      {
        absl::MutexLock lock(&mutex_);
        newest_.reset();
        state_ = absl::StrCat("loading again: ", reason);
      }
      if (is_llm()) model_.group->SetLlmState(ServingGroup::LlmState::kUnloaded);
      session->End();
    }
    if (cluster_.now() < next_load) continue;
    const absl::StatusOr<std::shared_ptr<ServingSession>> taken = AssignWorkers();
    const absl::Status status = taken.ok() ? Load(*taken) : taken.status();
    if (status.ok()) {
      spdlog::info("model {} is loaded on {} workers", model_.name, model_.programs.size());
      pause.Reset();
      told.clear();
      continue;
    }
    // Looking for workers is cheap and they may join at any time, so retry often. A failed load has
    // read all weights, so back off.
    if (taken.ok()) {
      next_load = cluster_.now() + pause.Take();
    } else if (is_llm() &&
               (absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status))) {
      model_.group->SetLlmState(ServingGroup::LlmState::kWaiting);
    }
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      state_ = absl::StrCat("waiting: ", status.message());
    }
    if (told == status.message()) continue;
    told = std::string(status.message());
    spdlog::warn("model {} is not loaded: {}", model_.name, told);
  }
}

void RemoteModelRunner::MoveIfWorkerLeaves(const std::shared_ptr<ServingSession>& session) {
  if (cluster_.now() < next_move_) return;
  const std::vector<Member>& members = session->members();
  const auto leaving = absl::c_find_if(
      members, [this](const Member& member) { return cluster_.workers->IsDraining(member.lease); });
  if (leaving == members.end()) return;
  {
    absl::MutexLock lock(&mutex_);
    if (left_ != nullptr) return;
  }
  // Where it is now, the present one would have to go first.
  const absl::StatusOr<std::shared_ptr<ServingSession>> taken = AssignWorkers(members);
  if (!taken.ok()) return;
  spdlog::info("model {}: worker {} ({}) is about to leave; loading it on others", model_.name,
               leaving->lease.worker_id(), leaving->name);
  {
    absl::MutexLock lock(&mutex_);
    left_ = session;
  }
  const absl::Status status = Load(*taken);
  if (status.ok()) {
    spdlog::info("model {} is loaded on other workers", model_.name);
    return;
  }
  spdlog::warn("model {} stays where it is for now: {}", model_.name,
               std::string(status.message()));
  next_move_ = cluster_.now() + kMaxBackoff;
  absl::MutexLock lock(&mutex_);
  left_.reset();
}

void RemoteModelRunner::EndLeft() {
  std::shared_ptr<ServingSession> left;
  {
    absl::MutexLock lock(&mutex_);
    if (left_ == nullptr || left_ == newest_) return;
    const bool in_use =
        current_ == left_ && left_->broken().empty() &&
        (newest_ == nullptr || open_steps_ > 0 || cluster_.now() - last_step_ < kUnused);
    if (in_use) return;
    left = std::move(left_);
  }
  left->End();
}

absl::Status RemoteModelRunner::Step(const RunnerBatch& batch, RunnerOutput* logits) {
  if (absl::Status status = Begin(batch); !status.ok()) return status;
  return End(logits);
}

absl::Status RemoteModelRunner::Begin(const RunnerBatch& batch) {
  {
    absl::MutexLock lock(&mutex_);
    // Before the first step no cache can be lost: keep the generation.
    if (current_ == nullptr) current_ = newest_;
    ++open_steps_;
  }
  const absl::Status status = current_ == nullptr ? absl::UnavailableError("it is not loaded yet")
                                                  : current_->BeginStep(batch);
  if (!status.ok()) StepIsOver();
  return Explain(status);
}

absl::Status RemoteModelRunner::End(RunnerOutput* logits) {
  const absl::Status status = current_->EndStep(logits);
  StepIsOver();
  return Explain(status);
}

void RemoteModelRunner::StepIsOver() {
  absl::MutexLock lock(&mutex_);
  --open_steps_;
  last_step_ = cluster_.now();
}

absl::Status RemoteModelRunner::Explain(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  absl::MutexLock lock(&mutex_);
  if (newest_ != nullptr) changed_.SignalAll();  // wakes reload_thread_ to see it
  const bool waits = newest_ == nullptr && !state_.empty();
  return absl::UnavailableError(absl::StrCat("model '", model_.name, "': ", status.message(),
                                             waits ? absl::StrCat(" (", state_, ")") : "",
                                             "; it is loaded again as soon as its workers are "
                                             "there: try again"));
}

uint64_t RemoteModelRunner::cache_generation() {
  // Open steps end in their own session.
  if (current_ != nullptr && current_->open_steps() > 0) return generation_;
  absl::MutexLock lock(&mutex_);
  if (newest_ != nullptr && newest_ != current_) {
    current_ = newest_;
    ++generation_;
  }
  return generation_;
}

bool RemoteModelRunner::is_to_move() {
  if (current_ == nullptr || !current_->broken().empty()) return false;
  absl::MutexLock lock(&mutex_);
  return newest_ != nullptr && newest_ != current_;
}

void RemoteModelRunner::Abandon() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;  // no new session either
  changed_.SignalAll();
  if (loading_ != nullptr) loading_->Break("the model is being unloaded");
  for (const auto& session : {newest_, left_}) {
    if (session != nullptr) session->Break("the model is being unloaded");
  }
}

RemoteModelRunner::Placement RemoteModelRunner::placement() const {
  absl::MutexLock lock(&mutex_);
  Placement placement;
  placement.state = state_;
  if (newest_ == nullptr) return placement;
  // reload_thread_ polls only a few times per second.
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
