// Workers that have joined, their leases, and the jobs they are assigned to.
//
// A lease is (worker id, epoch). The epoch grows with every join, across restarts of the
// coordinator, so a write under an old lease is always distinguishable. A worker that is silent for
// the length of its lease is dead; it must join again and gets a new lease.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

constexpr uint32_t kProtocolVersion = 4;

// A live worker, as seen by a job.
struct Member {
  v1::Lease lease;
  std::string name;
  std::string address;
  std::string host;
  v1::Device device;
  std::string call_key;  // shown with every call to it; secret
  // Of its Shards service; see v1::JoinRequest.
  std::string shards_address, shards_certificate;
};

// Returns InvalidArgument or FailedPrecondition (the protocol's version) for a request that no
// worker may join with.
absl::Status CheckJoinRequest(const v1::JoinRequest& request);

// Thread-safe.
class WorkerRegistry {
 public:
  using NextEpoch = std::function<absl::StatusOr<uint64_t>()>;
  using OnLost = std::function<void(const Member& worker, absl::string_view reason)>;

  // `next_epoch` returns durable, increasing numbers. Both callbacks are optional and called
  // without locks: `on_change` after workers joined, drain, left or changed jobs; `on_lost` before
  // it, once for each worker that did not leave by itself. `clock` must outlive the registry.
  WorkerRegistry(const Clock* clock, absl::Duration lease, NextEpoch next_epoch,
                 std::function<void()> on_change = nullptr, OnLost on_lost = nullptr);

  absl::Duration lease() const { return lease_; }

  // A worker that joins at the address of a live one replaces it: the old one is dead at once.
  // Repeating a request with the same idempotency_key returns the same lease while it lives.
  // Returns InvalidArgument if the key was used with another request; FailedPrecondition if live
  // workers of other hosts encrypt tensors and this one does not, or the other way round: no job
  // could use both. `owner`: by whom the lease may be used (OwnerOf).
  absl::StatusOr<v1::Lease> Join(const v1::JoinRequest& request, const std::string& owner = "");
  absl::StatusOr<v1::HeartbeatReply> Heartbeat(const v1::HeartbeatRequest& request);
  // The worker is about to leave: it is assigned to nothing more. Returns what it is assigned to.
  absl::StatusOr<std::vector<std::string>> Drain(const v1::Lease& lease);
  absl::Status Leave(const v1::Lease& lease);

  // Returns FailedPrecondition, naming both epochs, unless this is a live worker's current lease.
  absl::Status Check(const v1::Lease& lease) const;
  // The same unless the worker is assigned to this job, too.
  absl::Status CheckAssigned(const v1::Lease& lease, const std::string& job_id) const;
  // Who joined as this worker, live or dead; nothing if there is none.
  std::optional<std::string> OwnerOf(const std::string& worker_id) const;
  // Whether a live worker is about to leave.
  bool IsDraining(const v1::Lease& lease) const;

  // Declares a worker that does not answer dead. If it is alive, it must join again.
  void Suspect(const v1::Lease& lease);

  // Marks workers with expired leases dead; returns how many.
  int Expire();

  std::vector<v1::WorkerInfo> List() const;
  std::vector<Member> Idle() const;
  std::vector<Member> Living() const;  // idle or busy, by worker id
  int Live() const;
  struct Counts {
    int idle = 0, busy = 0, draining = 0, dead = 0, left = 0;
  };
  Counts Count() const;
  v1::Link MeasuredLink() const;  // the slowest reported link; zero if none

  // A job's claim on a worker.
  struct Assignment {
    std::string job_id;
    // Jobs of one group may share a worker as far as its memory allows. Empty: exclusive.
    std::string group;
    int64_t bytes = 0;     // memory per worker; ignored if exclusive
    uint64_t attempt = 0;  // of the job
  };
  // A worker available to a group, with the bytes that other jobs leave free.
  struct AvailableWorker {
    Member member;
    int64_t bytes = 0;
    bool shared = false;  // other jobs use it
  };
  // Returns the idle workers, then those assigned to `group`, each in the order of Idle.
  std::vector<AvailableWorker> AvailableFor(const std::string& group) const;

  // Assigns workers to a job. Returns FailedPrecondition, assigning none, if one is no longer idle
  // and is used by another group or has too little memory left.
  absl::Status Assign(const std::vector<Member>& members, const Assignment& assignment);
  absl::Status Assign(const std::vector<Member>& members, const std::string& job_id) {
    return Assign(members, Assignment{job_id, "", 0});
  }
  // Releases the job's workers. If `attempt` is given, only those of that attempt: a later one may
  // already have its own.
  void Release(const std::string& job_id, std::optional<uint64_t> attempt = std::nullopt);

 private:
  struct Worker {
    Member member;
    absl::Time last_heartbeat;
    bool dead = false;
    bool left = false;                    // it said so; it is dead, too
    bool draining = false;                // about to leave
    std::vector<Assignment> assignments;  // if several, of one group
    v1::JoinRequest request;              // the join request
    std::string owner;
    v1::Link link;
  };

  absl::Status CheckLocked(const v1::Lease& lease) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the free bytes for a job of the group, or nullopt if other jobs use the worker.
  static std::optional<int64_t> BytesFor(const Worker& worker, const std::string& group);
  static std::string JobsOf(const Worker& worker);
  bool Expired(const Worker& worker) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  v1::WorkerInfo::State StateOf(const Worker& worker) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the lease of the live worker that joined by this request, or InvalidArgument if another
  // request used its key.
  absl::StatusOr<std::optional<v1::Lease>> JoinedBy(const v1::JoinRequest& request) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckEncryption(const v1::JoinRequest& request) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Marks the worker with this current lease dead and returns it; errors as Check. `left`: it said
  // so itself.
  absl::StatusOr<Member> MarkDead(const v1::Lease& lease, bool left);
  void Lost(const std::vector<Member>& members, absl::string_view reason) const {
    for (const Member& member : members) {
      if (on_lost_) on_lost_(member, reason);
    }
  }
  void Changed() const {
    if (on_change_) on_change_();
  }

  const Clock* const clock_;
  const absl::Duration lease_;
  const NextEpoch next_epoch_;
  const std::function<void()> on_change_;
  const OnLost on_lost_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mutex_);  // by worker id
};

}  // namespace espalier
