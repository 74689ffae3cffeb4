#include "server/membership/worker_registry.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

// How long dead workers are listed.
constexpr absl::Duration kDeadWorkerRetention = absl::Minutes(10);
constexpr size_t kShortestCallKey = 32, kLongestCallKey = 256;
constexpr size_t kMostNamed = 3;  // workers in a message

}  // namespace

absl::Status CheckJoinRequest(const v1::JoinRequest& request) {
  if (request.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker speaks protocol version ", request.protocol_version(),
                     ", this coordinator ", kProtocolVersion, "; use programs of one release"));
  }
  const size_t colon = request.address().rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == request.address().size() ||
      request.address().size() > 300) {
    return absl::InvalidArgumentError(absl::StrCat("address '", request.address().substr(0, 300),
                                                   "' of the worker: host:port is wanted"));
  }
  if (request.call_key().size() < kShortestCallKey || request.call_key().size() > kLongestCallKey) {
    return absl::InvalidArgumentError(absl::StrCat(
        "call_key: ", kShortestCallKey, " to ", kLongestCallKey, " random characters are wanted"));
  }
  if (request.device().kind() == v1::Device::KIND_UNSPECIFIED ||
      request.device().memory_bytes() <= 0) {
    return absl::InvalidArgumentError("device: kind and memory_bytes must be given");
  }
  const v1::Device& device = request.device();
  if (!(device.matmul_flops() > 0) || !(device.memory_bandwidth() > 0)) {
    return absl::InvalidArgumentError(
        "device: matmul_flops and memory_bandwidth must be greater than zero");
  }
  return absl::OkStatus();
}

WorkerRegistry::WorkerRegistry(const Clock* clock, absl::Duration lease, NextEpoch next_epoch,
                               std::function<void()> on_change, OnLost on_lost)
    : clock_(clock),
      lease_(lease),
      next_epoch_(std::move(next_epoch)),
      on_change_(std::move(on_change)),
      on_lost_(std::move(on_lost)) {}

bool WorkerRegistry::Expired(const Worker& worker) const {
  return worker.dead || clock_->Now() - worker.last_heartbeat > lease_;
}

v1::WorkerInfo::State WorkerRegistry::StateOf(const Worker& worker) const {
  if (worker.left) return v1::WorkerInfo::LEFT;
  if (Expired(worker)) return v1::WorkerInfo::DEAD;
  if (worker.draining) return v1::WorkerInfo::DRAINING;
  return worker.assignments.empty() ? v1::WorkerInfo::IDLE : v1::WorkerInfo::BUSY;
}

absl::StatusOr<std::optional<v1::Lease>> WorkerRegistry::JoinedBy(
    const v1::JoinRequest& request) const {
  const std::string& key = request.idempotency_key();
  if (key.empty()) return std::nullopt;
  for (const auto& [id, worker] : workers_) {
    if (worker.request.idempotency_key() != key || Expired(worker)) continue;
    if (worker.request.SerializeAsString() == request.SerializeAsString()) {
      return worker.member.lease;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("idempotency_key '", key.substr(0, 300), "': worker ", id,
                     " has joined with it by another request; use a new key for a new request"));
  }
  return std::nullopt;
}

// A job on both would fail: ranks of different hosts must agree (worker/collective/peer_links.h).
absl::Status WorkerRegistry::CheckEncryption(const v1::JoinRequest& request) const {
  if (request.tensors_between_hosts() == v1::JoinRequest::TENSORS_UNSPECIFIED) {
    return absl::OkStatus();  // of an earlier release
  }
  std::vector<std::string> others;
  for (const auto& [id, worker] : workers_) {
    const v1::JoinRequest& other = worker.request;
    const bool shares_memory = !request.shared_memory_id().empty() &&
                               request.shared_memory_id() == other.shared_memory_id();
    // One that drains gets no job, and one at this address is replaced.
    if (Expired(worker) || worker.draining || shares_memory ||
        other.address() == request.address() ||
        other.tensors_between_hosts() == v1::JoinRequest::TENSORS_UNSPECIFIED ||
        other.tensors_between_hosts() == request.tensors_between_hosts()) {
      continue;
    }
    if (others.size() == kMostNamed) {
      others.push_back("...");
      break;
    }
    others.push_back(absl::StrCat(id, " (", other.name(), ")"));
  }
  if (others.empty()) return absl::OkStatus();
  const bool encrypts = request.tensors_between_hosts() == v1::JoinRequest::ENCRYPTED;
  return absl::FailedPreconditionError(absl::StrCat(
      encrypts ? "this worker encrypts tensors between hosts, and workers of other hosts do not: "
               : "this worker runs with --trusted-network, and workers of other hosts do not: ",
      absl::StrJoin(others, ", "), "; start it ",
      encrypts ? "with --trusted-network, if you trust the network between the hosts, or end those "
                 "and start all workers without it"
               : "without that flag, or end those and start all workers with it (those of "
                 "espalierd --local-workers cannot have it: end them with --local-workers=0)"));
}

absl::StatusOr<v1::Lease> WorkerRegistry::Join(const v1::JoinRequest& request,
                                               const std::string& owner) {
  absl::Status status = CheckJoinRequest(request);
  if (!status.ok()) return status;
  {
    absl::MutexLock lock(&mutex_);
    const auto joined = JoinedBy(request);
    if (!joined.ok()) return joined.status();
    if (joined->has_value()) return **joined;
    if (absl::Status s = CheckEncryption(request); !s.ok()) return s;
  }
  absl::StatusOr<uint64_t> epoch = next_epoch_();  // writes to disk: not under the lock
  if (!epoch.ok()) return epoch.status();
  Worker worker;
  worker.member.lease.set_worker_id(absl::StrCat("w", *epoch));
  worker.member.lease.set_epoch(*epoch);
  worker.member.name = request.name();
  worker.member.address = request.address();
  worker.member.host = request.host();
  worker.member.device = request.device();
  worker.member.device.set_host(request.host());
  worker.member.call_key = request.call_key();
  worker.member.shards_address = request.shards_address();
  worker.member.shards_certificate = request.shards_certificate();
  worker.request = request;
  worker.owner = owner;
  const v1::Lease lease = worker.member.lease;
  std::vector<Member> replaced;
  {
    absl::MutexLock lock(&mutex_);
    // A concurrent retry of the request may have joined: return its lease.
    const auto joined = JoinedBy(request);
    if (!joined.ok()) return joined.status();
    if (joined->has_value()) return **joined;
    // Another worker may have joined meanwhile.
    if (absl::Status s = CheckEncryption(request); !s.ok()) return s;
    worker.last_heartbeat = clock_->Now();
    for (auto& [id, other] : workers_) {
      if (other.dead || other.member.address != request.address()) continue;
      other.dead = true;
      replaced.push_back(other.member);
    }
    workers_[lease.worker_id()] = std::move(worker);
  }
  Lost(replaced, "another process has its address");
  Changed();
  return lease;
}

absl::Status WorkerRegistry::CheckLocked(const v1::Lease& lease) const {
  auto it = workers_.find(lease.worker_id());
  if (it == workers_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no worker '", lease.worker_id(), "' with epoch ", lease.epoch()));
  }
  if (it->second.member.lease.epoch() != lease.epoch()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker '", lease.worker_id(), "': epoch ", lease.epoch(),
                     " is stale, the present one is ", it->second.member.lease.epoch()));
  }
  if (it->second.left) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker '", lease.worker_id(), "' was told to end and has left"));
  }
  if (Expired(it->second)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker '", lease.worker_id(), "': the lease with epoch ", lease.epoch(), " has run out"));
  }
  return absl::OkStatus();
}

absl::Status WorkerRegistry::Check(const v1::Lease& lease) const {
  absl::MutexLock lock(&mutex_);
  return CheckLocked(lease);
}

absl::Status WorkerRegistry::CheckAssigned(const v1::Lease& lease,
                                           const std::string& job_id) const {
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = CheckLocked(lease); !s.ok()) return s;
  const std::vector<Assignment>& assignments = workers_.at(lease.worker_id()).assignments;
  const auto is_of_job = [&](const Assignment& assignment) { return assignment.job_id == job_id; };
  if (std::any_of(assignments.begin(), assignments.end(), is_of_job)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("worker '", lease.worker_id(),
                                                    "' does not work for job '",
                                                    job_id.substr(0, 300), "' (any more)"));
}

std::optional<std::string> WorkerRegistry::OwnerOf(const std::string& worker_id) const {
  absl::MutexLock lock(&mutex_);
  const auto it = workers_.find(worker_id);
  if (it == workers_.end()) return std::nullopt;
  return it->second.owner;
}

bool WorkerRegistry::IsDraining(const v1::Lease& lease) const {
  absl::MutexLock lock(&mutex_);
  return CheckLocked(lease).ok() && workers_.at(lease.worker_id()).draining;
}

absl::StatusOr<v1::HeartbeatReply> WorkerRegistry::Heartbeat(const v1::HeartbeatRequest& request) {
  absl::MutexLock lock(&mutex_);
  absl::Status status = CheckLocked(request.lease());
  if (!status.ok()) return status;
  Worker& worker = workers_[request.lease().worker_id()];
  worker.last_heartbeat = clock_->Now();
  if (request.measured_link().bandwidth() > 0) worker.link = request.measured_link();
  v1::HeartbeatReply reply;
  reply.set_drained(worker.draining && worker.assignments.empty());
  return reply;
}

absl::StatusOr<std::vector<std::string>> WorkerRegistry::Drain(const v1::Lease& lease) {
  std::vector<std::string> jobs;
  {
    absl::MutexLock lock(&mutex_);
    absl::Status status = CheckLocked(lease);
    if (!status.ok()) return status;
    Worker& worker = workers_[lease.worker_id()];
    worker.draining = true;
    for (const Assignment& assignment : worker.assignments) jobs.push_back(assignment.job_id);
  }
  Changed();
  return jobs;
}

absl::StatusOr<Member> WorkerRegistry::MarkDead(const v1::Lease& lease, bool left) {
  absl::MutexLock lock(&mutex_);
  absl::Status status = CheckLocked(lease);
  if (!status.ok()) return status;
  Worker& worker = workers_[lease.worker_id()];
  worker.dead = true;
  worker.left = left;
  return worker.member;
}

absl::Status WorkerRegistry::Leave(const v1::Lease& lease) {
  const absl::StatusOr<Member> left = MarkDead(lease, /*left=*/true);
  if (left.ok()) Changed();
  return left.status();
}

void WorkerRegistry::Suspect(const v1::Lease& lease) {
  const absl::StatusOr<Member> lost = MarkDead(lease, /*left=*/false);
  if (!lost.ok()) return;  // it has left or was already lost
  Lost({*lost}, "it does not answer");
  Changed();
}

int WorkerRegistry::Expire() {
  std::vector<Member> lost;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = workers_.begin(); it != workers_.end();) {
      Worker& worker = it->second;
      if (!worker.dead && Expired(worker)) {
        worker.dead = true;
        lost.push_back(worker.member);
      }
      const bool forget =
          worker.dead && clock_->Now() - worker.last_heartbeat > lease_ + kDeadWorkerRetention;
      it = forget ? workers_.erase(it) : std::next(it);
    }
  }
  Lost(lost, "its lease ran out");
  if (!lost.empty()) Changed();
  return static_cast<int>(lost.size());
}

std::vector<v1::WorkerInfo> WorkerRegistry::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::pair<uint64_t, v1::WorkerInfo>> sorted;
  for (const auto& [id, worker] : workers_) {
    v1::WorkerInfo info;
    info.set_worker_id(id);
    info.set_name(worker.member.name);
    info.set_address(worker.member.address);
    info.set_host(worker.member.host);
    *info.mutable_device() = worker.member.device;
    info.set_state(StateOf(worker));
    info.set_seconds_since_heartbeat(absl::ToDoubleSeconds(clock_->Now() - worker.last_heartbeat));
    info.set_job_id(JobsOf(worker));
    sorted.emplace_back(worker.member.lease.epoch(), std::move(info));
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<v1::WorkerInfo> infos;
  for (auto& [epoch, info] : sorted) infos.push_back(std::move(info));
  return infos;
}

std::vector<Member> WorkerRegistry::Idle() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Member> members;
  for (const auto& [id, worker] : workers_) {
    if (StateOf(worker) == v1::WorkerInfo::IDLE) members.push_back(worker.member);
  }
  // Sorted by name, so that ranks keep their machines when workers rejoin in another order.
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
    return std::make_pair(a.name, a.lease.epoch()) < std::make_pair(b.name, b.lease.epoch());
  });
  return members;
}

std::vector<Member> WorkerRegistry::Living() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Member> members;
  for (const auto& [id, worker] : workers_) {
    const v1::WorkerInfo::State state = StateOf(worker);
    if (state == v1::WorkerInfo::IDLE || state == v1::WorkerInfo::BUSY) {
      members.push_back(worker.member);
    }
  }
  return members;
}

int WorkerRegistry::Live() const {
  absl::MutexLock lock(&mutex_);
  int count = 0;
  for (const auto& [id, worker] : workers_) count += Expired(worker) ? 0 : 1;
  return count;
}

WorkerRegistry::Counts WorkerRegistry::Count() const {
  absl::MutexLock lock(&mutex_);
  Counts counts;
  for (const auto& [id, worker] : workers_) {
    const v1::WorkerInfo::State state = StateOf(worker);
    ++(state == v1::WorkerInfo::DEAD       ? counts.dead
       : state == v1::WorkerInfo::LEFT     ? counts.left
       : state == v1::WorkerInfo::DRAINING ? counts.draining
       : state == v1::WorkerInfo::IDLE     ? counts.idle
                                           : counts.busy);
  }
  return counts;
}

v1::Link WorkerRegistry::MeasuredLink() const {
  absl::MutexLock lock(&mutex_);
  v1::Link slowest;
  for (const auto& [id, worker] : workers_) {
    if (Expired(worker) || worker.link.bandwidth() <= 0) continue;
    if (slowest.bandwidth() <= 0 || worker.link.bandwidth() < slowest.bandwidth()) {
      slowest = worker.link;
    }
  }
  return slowest;
}

std::optional<int64_t> WorkerRegistry::BytesFor(const Worker& worker, const std::string& group) {
  int64_t left = worker.member.device.memory_bytes();
  for (const Assignment& assignment : worker.assignments) {
    if (group.empty() || assignment.group != group) return std::nullopt;
    left -= assignment.bytes;
  }
  return left;
}

std::string WorkerRegistry::JobsOf(const Worker& worker) {
  return absl::StrJoin(
      worker.assignments, ", ",
      [](std::string* out, const Assignment& assignment) { out->append(assignment.job_id); });
}

std::vector<WorkerRegistry::AvailableWorker> WorkerRegistry::AvailableFor(
    const std::string& group) const {
  std::vector<AvailableWorker> available;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, worker] : workers_) {
      const std::optional<int64_t> bytes = BytesFor(worker, group);
      if (Expired(worker) || worker.draining || !bytes.has_value()) continue;
      available.push_back({worker.member, *bytes, !worker.assignments.empty()});
    }
  }
  std::sort(available.begin(), available.end(),
            [](const AvailableWorker& a, const AvailableWorker& b) {
              return std::tuple(a.shared, a.member.name, a.member.lease.epoch()) <
                     std::tuple(b.shared, b.member.name, b.member.lease.epoch());
            });
  return available;
}

absl::Status WorkerRegistry::Assign(const std::vector<Member>& members,
                                    const Assignment& assignment) {
  {
    absl::MutexLock lock(&mutex_);
    for (const Member& member : members) {
      absl::Status status = CheckLocked(member.lease);
      if (!status.ok()) return status;
      const Worker& worker = workers_[member.lease.worker_id()];
      if (worker.draining) {
        return absl::FailedPreconditionError(
            absl::StrCat("worker '", member.lease.worker_id(), "' is about to leave"));
      }
      if (worker.assignments.empty()) continue;
      const std::optional<int64_t> left = BytesFor(worker, assignment.group);
      if (left.has_value() && *left >= assignment.bytes) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "worker '", member.lease.worker_id(), "' works for job ", JobsOf(worker),
          left.has_value() ? absl::StrCat(", which leaves ", *left, " bytes of its memory; ",
                                          assignment.job_id, " needs ", assignment.bytes)
                           : ""));
    }
    for (const Member& member : members) {
      workers_[member.lease.worker_id()].assignments.push_back(assignment);
    }
  }
  Changed();
  return absl::OkStatus();
}

void WorkerRegistry::Release(const std::string& job_id, std::optional<uint64_t> attempt) {
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [id, worker] : workers_) {
      auto& assignments = worker.assignments;
      assignments.erase(std::remove_if(assignments.begin(), assignments.end(),
                                       [&](const Assignment& assignment) {
                                         return assignment.job_id == job_id &&
                                                assignment.attempt ==
                                                    attempt.value_or(assignment.attempt);
                                       }),
                        assignments.end());
    }
  }
  Changed();
}

}  // namespace espalier
