#include "worker/cluster_membership.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/backoff.h"

namespace espalier {
namespace {

// Between joins.
Backoff JoinPauses() { return Backoff(absl::Milliseconds(100), absl::Seconds(5)); }
// Between heartbeats of a worker that waits until it may leave.
constexpr absl::Duration kDrainHeartbeat = absl::Milliseconds(500);
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);  // of the call

std::string RandomKey() {
  std::random_device source;
  return absl::StrFormat("%08x%08x%08x%08x", source(), source(), source(), source());
}

}  // namespace

absl::Status ClusterMembership::Start() {
  if (absl::Status s = FirstJoin(); !s.ok()) return s;
  thread_ = std::thread([this] { HeartbeatLoop(); });
  return absl::OkStatus();
}

void ClusterMembership::Stop() {
  options_.storage->Stop();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    stop_.SignalAll();
    drain_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ClusterMembership::Leave() {
  v1::Lease lease;
  {
    absl::MutexLock lock(&mutex_);
    if (!joined_) return;
    lease = lease_;
  }
  options_.client->Leave(lease).IgnoreError();
}

std::string ClusterMembership::worker_id() const {
  absl::MutexLock lock(&mutex_);
  return joined_ ? lease_.worker_id() : "";
}

ClusterMembership::Lease ClusterMembership::lease() const {
  absl::MutexLock lock(&mutex_);
  return {lease_, lease_time_};
}

void ClusterMembership::Drain(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  if (!joined_) return;
  const absl::Time deadline = clock_.Now() + timeout;
  draining_ = true;
  announces_ = true;
  stop_.SignalAll();
  while (draining_ && !drained_ && !stopping_) {
    const absl::Time until = std::min(deadline, last_answer_ + lease_time_);
    const absl::Duration left = until - clock_.Now();
    if (left <= absl::ZeroDuration()) break;
    drain_.WaitWithTimeout(&mutex_, left);
  }
  spdlog::info("leaving, {}", drained_     ? "nothing uses this worker any more"
                              : !draining_ ? "at once"
                              : clock_.Now() >= deadline
                                  ? "although it is in use: --drain-timeout is over"
                                  : "since the coordinator does not answer");
}

void ClusterMembership::EndDrain() {
  absl::MutexLock lock(&mutex_);
  draining_ = false;
  drain_.SignalAll();
}

absl::Status ClusterMembership::Join(const std::string& key, bool* answered) {
  v1::JoinRequest request = options_.request;
  request.set_idempotency_key(key);
  options_.service->SetJoinKey(key);
  absl::StatusOr<v1::JoinReply> reply = options_.client->Join(request);
  if (!reply.ok()) return reply.status();
  if (answered != nullptr) *answered = true;
  for (bool quick = false; !quick;) {
    const absl::Time begin = absl::Now();
    if (absl::Status s = options_.storage->Join(*reply); !s.ok()) {
      // Meanwhile it must not be given jobs.
      options_.client->Leave(reply->lease()).IgnoreError();
      return s;
    }
    quick = absl::Now() - begin < absl::Seconds(reply->heartbeat_seconds());
    // The lease may have ended before the first heartbeat; what was checked is not checked again.
    if (!quick) reply = options_.client->Join(request);
    if (!reply.ok()) return reply.status();
  }
  options_.on_joined(*reply);
  {
    absl::MutexLock lock(&mutex_);
    lease_ = reply->lease();
    joined_ = true;
    last_answer_ = clock_.Now();
    announces_ = draining_;
    heartbeat_ = absl::Seconds(std::clamp(reply->heartbeat_seconds(), 0.01, 60.0));
    lease_time_ = absl::Seconds(std::clamp(reply->lease_seconds(), 0.05, 3600.0));
  }
  options_.service->SetEpoch(reply->lease().epoch());
  spdlog::info("joined {} as {} (epoch {}), serving on {}", options_.coordinator,
               reply->lease().worker_id(), reply->lease().epoch(), options_.request.address());
  return absl::OkStatus();
}

absl::Status ClusterMembership::FirstJoin() {
  const absl::Time deadline = absl::Now() + options_.join_timeout;
  const std::string key = RandomKey();
  Backoff backoff = JoinPauses();
  for (int tries = 1;; ++tries) {
    bool answered = false;
    absl::Status s = Join(key, &answered);
    if (absl::IsUnauthenticated(s)) {
      return absl::UnauthenticatedError(
          absl::StrCat(s.message(),
                       "; start this worker with --join=TOKEN (espalier token create "
                       "--role=worker), or with --api-key-file, as espalierd was"));
    }
    if (s.ok() || !MayPass(s)) return s;
    if (tries == 1) {
      spdlog::warn("cannot join yet, and tries for {}: {}",
                   absl::FormatDuration(options_.join_timeout), std::string(s.message()));
    }
    const bool too_late = absl::Now() + backoff.next() >= deadline;
    if (answered && too_late) return s;
    if (too_late) {
      return absl::UnavailableError(absl::StrCat(
          "no coordinator answers at ", options_.coordinator, " after ", tries, " attempts in ",
          absl::FormatDuration(options_.join_timeout), " (", std::string(s.message()),
          "); is espalierd running there, and is --coordinator right?"));
    }
    absl::SleepFor(backoff.Take());
  }
}

bool ClusterMembership::SleepUnlessStopping(absl::Duration duration) {
  const absl::Time deadline = absl::Now() + duration;
  absl::MutexLock lock(&mutex_);
  while (!stopping_ && !std::exchange(announces_, false)) {
    if (stop_.WaitWithDeadline(&mutex_, deadline)) break;
  }
  return !stopping_;
}

void ClusterMembership::AnnounceDrain(const v1::Lease& lease) {
  const absl::StatusOr<v1::DrainReply> reply = options_.client->Drain(lease, kDrainTimeout);
  if (!reply.ok()) {
    spdlog::warn("cannot say that this worker is about to leave: {}",
                 std::string(reply.status().message()));
    const bool later = MayPass(reply.status()) || absl::IsFailedPrecondition(reply.status());
    if (!later) EndDrain();  // an older coordinator, for example
    return;
  }
  if (reply->jobs_size() > 0) {
    spdlog::info("waits until {} can do without this worker", absl::StrJoin(reply->jobs(), ", "));
  }
  absl::MutexLock lock(&mutex_);
  if (lease.epoch() != lease_.epoch()) return;
  announced_ = lease.epoch();
  if (reply->jobs_size() == 0) SetDrained();
}

void ClusterMembership::SetDrained() {
  drained_ = true;
  drain_.SignalAll();
}

absl::Duration ClusterMembership::SinceAnswer() const {
  absl::MutexLock lock(&mutex_);
  return clock_.Now() - last_answer_;
}

void ClusterMembership::OnLeaseLost(const std::string& reason) {
  spdlog::warn("{}; aborting running jobs and joining again", reason);
  {
    absl::MutexLock lock(&mutex_);
    joined_ = false;
  }
  options_.service->SetEpoch(0);
  options_.service->AbortAll(reason);
}

void ClusterMembership::HeartbeatLoop() {
  Backoff backoff = JoinPauses();
  std::string key;
  std::optional<v1::Link> measured;  // until a heartbeat has told it
  while (true) {
    bool joined = false, announces = false;
    absl::Duration interval, lease_time;
    v1::HeartbeatRequest request;
    {
      absl::MutexLock lock(&mutex_);
      joined = joined_;
      interval = draining_ ? std::min(heartbeat_, kDrainHeartbeat) : heartbeat_;
      lease_time = lease_time_;
      *request.mutable_lease() = lease_;
    }
    if (!SleepUnlessStopping(joined ? interval : backoff.Take())) return;
    if (!joined) {
      if (key.empty()) key = RandomKey();
      absl::Status s = Join(key);
      if (s.ok()) {
        key.clear();
        backoff.Reset();
      } else {
        spdlog::warn("cannot join: {}", std::string(s.message()));
      }
      continue;
    }
    {
      absl::MutexLock lock(&mutex_);
      announces = draining_ && announced_ != lease_.epoch();
    }
    if (announces) AnnounceDrain(request.lease());
    for (const std::string& job : options_.service->running_jobs()) request.add_running_jobs(job);
    v1::Link link;
    if (options_.service->TakeLink(&link)) measured = std::move(link);
    if (measured.has_value()) *request.mutable_measured_link() = *measured;
    const absl::StatusOr<v1::HeartbeatReply> reply =
        options_.client->Heartbeat(request, std::max(interval, absl::Seconds(1)));
    const absl::Status& s = reply.status();
    if (s.ok()) {
      absl::MutexLock lock(&mutex_);
      last_answer_ = clock_.Now();
      if (reply->drained()) SetDrained();
      measured.reset();
    } else if (absl::IsFailedPrecondition(s) || absl::IsNotFound(s)) {
      OnLeaseLost(absl::StrCat("the lease is gone: ", std::string(s.message())));
    } else if (SinceAnswer() > lease_time) {
      OnLeaseLost(absl::StrCat("the lease ran out without an answer: ", std::string(s.message())));
    }
  }
}

}  // namespace espalier
