#include "server/replay/replay_ranks.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/attempt_end.h"

namespace espalier {
namespace {

constexpr absl::Duration kReplayLoadTimeout = absl::Minutes(30);
constexpr absl::Duration kReplayStopTimeout = absl::Seconds(3);
constexpr absl::Duration kLeaseCheck = absl::Milliseconds(200);
// After one rank has failed, wait this long for another rank to report the root cause.
constexpr absl::Duration kOthersReport = absl::Milliseconds(500);
constexpr double kReplayPeerTimeoutSeconds = 600;

}  // namespace

std::string ReplayAttemptName(const std::string& job_id, const std::string& replay_id,
                              int segment) {
  return absl::StrCat(job_id, "@", replay_id, ".", segment);
}

ReplayRanks::ReplayRanks(const AttemptTools& tools, std::string name, uint64_t attempt,
                         std::vector<Member> members)
    : tools_(tools), name_(std::move(name)), attempt_(attempt), members_(std::move(members)) {
  for (const Member& member : members_) clients_.push_back(tools_.dial(member));
}

absl::StatusOr<std::unique_ptr<ReplayRanks>> ReplayRanks::Create(const AttemptTools& tools,
                                                                 std::string name,
                                                                 std::vector<Member> members,
                                                                 uint64_t attempt) {
  WorkerRegistry::Assignment assignment;
  assignment.job_id = name;
  assignment.attempt = attempt;
  if (absl::Status s = tools.workers->Assign(members, assignment); !s.ok()) return s;
  tools.rendezvous->Begin(name, attempt);
  return std::unique_ptr<ReplayRanks>(
      new ReplayRanks(tools, std::move(name), attempt, std::move(members)));
}

ReplayRanks::~ReplayRanks() {
  StopWorkers();
  tools_.rendezvous->End(name_);
  tools_.workers->Release(name_);
}

std::string ReplayRanks::Describe(size_t rank) const {
  const Member& member = members_[rank];
  return absl::StrCat("worker ", member.lease.worker_id(),
                      member.name.empty() ? "" : absl::StrCat(" (", member.name, ")"));
}

v1::Attempt ReplayRanks::AttemptOf(size_t rank) const {
  v1::Attempt attempt;
  attempt.set_job_id(name_);
  attempt.set_attempt(attempt_);
  attempt.set_worker_epoch(members_[rank].lease.epoch());
  return attempt;
}

void ReplayRanks::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  changed_.SignalAll();
}

void ReplayRanks::StopWorkers() {
  if (std::exchange(stopped_, true)) return;
  std::vector<std::thread> threads;
  for (size_t r = 0; r < clients_.size(); ++r) {
    threads.emplace_back([this, r] {
      v1::StopRequest request;
      *request.mutable_attempt() = AttemptOf(r);
      const absl::Status status = clients_[r]->Stop(request, kReplayStopTimeout);
      if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
        // It gets no work until it has joined again.
        tools_.workers->Suspect(members_[r].lease);
      }
      clients_[r]->Cancel();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

absl::Status ReplayRanks::OnAll(const std::function<absl::Status(size_t rank)>& work) {
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_ || stopped_) return absl::CancelledError("the replay was cancelled");
  }
  std::vector<std::optional<absl::Status>> ended(size());
  std::vector<std::string> lost(size());
  bool cancelled = false, failed = false;
  std::vector<std::thread> threads;
  for (size_t r = 0; r < size(); ++r) {
    threads.emplace_back([&, r] {
      absl::Status status = work(r);
      absl::MutexLock lock(&mutex_);
      ended[r] = std::move(status);
      changed_.SignalAll();
    });
  }
  {
    absl::MutexLock lock(&mutex_);
    const auto all = [&] {
      return std::all_of(ended.begin(), ended.end(), [](const auto& e) { return e.has_value(); });
    };
    const auto any_failed = [&] {
      return std::any_of(ended.begin(), ended.end(),
                         [](const auto& e) { return e.has_value() && !e->ok(); });
    };
    while (!all() && !cancelled_ && !failed) {
      changed_.WaitWithTimeout(&mutex_, kLeaseCheck);
      for (size_t r = 0; r < size(); ++r) {
        const absl::Status lease = tools_.workers->Check(members_[r].lease);
        if (!lease.ok() && !ended[r].has_value()) lost[r] = std::string(lease.message());
        failed = failed || !lost[r].empty();
      }
      failed = failed || any_failed();
    }
    const absl::Time deadline = absl::Now() + kOthersReport;
    while (!all() && !cancelled_ && absl::Now() < deadline) {
      changed_.WaitWithDeadline(&mutex_, deadline);
    }
    cancelled = cancelled_;
    failed = failed || any_failed();
  }
  if (failed || cancelled) StopWorkers();
  for (std::thread& thread : threads) thread.join();
  if (cancelled) return absl::CancelledError("the replay was cancelled");
  for (size_t r = 0; r < size(); ++r) {
    if (!lost[r].empty()) {
      return absl::UnavailableError(absl::StrCat(Describe(r), " lost: ", lost[r]));
    }
  }
  // What the others say of a rank that is gone hides its reason.
  const absl::Status* worst = nullptr;
  size_t worst_rank = 0;
  for (size_t r = 0; r < size(); ++r) {
    if (ended[r]->ok()) continue;
    if (worst == nullptr || (IsWorkerLoss(worst->code()) && !IsWorkerLoss(ended[r]->code()))) {
      worst = &*ended[r];
      worst_rank = r;
    }
  }
  if (worst == nullptr) return absl::OkStatus();
  const absl::StatusCode code =
      IsWorkerLoss(worst->code()) ? absl::StatusCode::kUnavailable : worst->code();
  return absl::Status(code, absl::StrCat(Describe(worst_rank), ": ", worst->message()));
}

absl::StatusOr<std::vector<v1::LoadProgramReply>> ReplayRanks::Load(
    std::vector<v1::LoadProgramRequest> requests) {
  std::vector<v1::LoadProgramReply> replies(size());
  absl::Status status = OnAll([&](size_t r) {
    *requests[r].mutable_attempt() = AttemptOf(r);
    requests[r].set_peer_timeout_seconds(kReplayPeerTimeoutSeconds);
    absl::StatusOr<v1::LoadProgramReply> reply =
        clients_[r]->LoadProgram(requests[r], kReplayLoadTimeout);
    if (!reply.ok()) return reply.status();
    replies[r] = *std::move(reply);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return replies;
}

absl::Status ReplayRanks::Run(const v1::RunRequest& request, const OnEvent& on_event) {
  absl::Mutex events;
  absl::Status refused;
  absl::Status status = OnAll([&](size_t r) {
    v1::RunRequest own = request;
    *own.mutable_attempt() = AttemptOf(r);
    bool stops = false;
    absl::Status ran = clients_[r]->Run(own, [&](const v1::RunEvent& event) {
      absl::MutexLock lock(&events);
      if (stops || !refused.ok()) return;
      refused = on_event(r, event);
      if (refused.ok()) return;
      stops = true;
      clients_[r]->Cancel();
    });
    absl::MutexLock lock(&events);
    return stops ? refused : ran;
  });
  return refused.ok() ? status : refused;
}

}  // namespace espalier
