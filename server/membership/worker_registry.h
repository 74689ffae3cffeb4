// Who is there: workers that have joined, their leases, and which job each works for.
//
// A lease is (worker id, epoch). The epoch grows with every join, restarts of the coordinator
// included, so a write under an old lease is always told from one under the present lease. A worker
// that was silent for the length of its lease is dead; it must join again, and gets a new lease.
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
#include "espalier/v1/cluster.pb.h"
#include "base/clock.h"

namespace espalier {

constexpr uint32_t kProtocolVersion = 1;

// A worker as a job sees it.
struct Member {
  v1::Lease lease;
  std::string name;
  std::string address;
  std::string host;
  v1::Device device;
};

// Thread-safe.
class WorkerRegistry {
 public:
  using NextEpoch = std::function<absl::StatusOr<uint64_t>()>;
  using OnLost = std::function<void(const Member& worker, absl::string_view reason)>;

  // `next_epoch` gives durable, growing numbers. Both optional, called without locks: `on_change`
  // after workers came, went or changed their job; before it `on_lost`, once for each worker that
  // went without leaving. `clock` must outlive the registry.
  WorkerRegistry(const Clock* clock, absl::Duration lease, NextEpoch next_epoch,
                 std::function<void()> on_change = nullptr, OnLost on_lost = nullptr);

  absl::Duration lease() const { return lease_; }

  // A worker at an address that a live one has takes its place: the old one counts as dead at once.
  // The same request with its idempotency_key again gives the same lease while that lives; another
  // request with that key is InvalidArgument.
  absl::StatusOr<v1::Lease> Join(const v1::JoinRequest& request);
  absl::Status Heartbeat(const v1::HeartbeatRequest& request);
  absl::Status Leave(const v1::Lease& lease);

  // FailedPrecondition, with both epochs, unless this is the worker's present lease and it lives.
  absl::Status Check(const v1::Lease& lease) const;

  // The worker does not answer: it counts as dead at once. If it lives, it must join again.
  void Suspect(const v1::Lease& lease);

  // Marks as dead those whose lease has run out; returns how many.
  int Expire();

  std::vector<v1::WorkerInfo> List() const;
  std::vector<Member> Idle() const;
  int Live() const;
  v1::Link MeasuredLink() const;  // the slowest that was told; zero if none

  // What a worker is given to do.
  struct Assignment {
    std::string job_id;
    // Jobs of one group may have a worker together, as far as its memory goes. Empty: this one has
    // its workers for itself.
    std::string group;
    int64_t bytes = 0;     // of each worker's memory; of one that has it for itself: not looked at
    uint64_t attempt = 0;  // of the job
  };
  // A worker that a job of a group may be given, and the bytes that the others there leave it.
  struct AvailableWorker {
    Member member;
    int64_t bytes = 0;
    bool shared = false;  // there are others
  };
  // The idle workers, then those assigned to `group`, both in the order of Idle.
  std::vector<AvailableWorker> AvailableFor(const std::string& group) const;

  // Gives workers to a job. FailedPrecondition, and nobody is taken, if one is not idle any more,
  // or works for another group or has less memory left.
  absl::Status Assign(const std::vector<Member>& members, const Assignment& assignment);
  absl::Status Assign(const std::vector<Member>& members, const std::string& job_id) {
    return Assign(members, Assignment{job_id, "", 0});
  }
  // Lets the job's workers go; those of one attempt only, if it is given: a later one may have its
  // own by then.
  void Release(const std::string& job_id, std::optional<uint64_t> attempt = std::nullopt);

 private:
  struct Worker {
    Member member;
    absl::Time last_heartbeat;
    bool dead = false;
    std::vector<Assignment> assignments;     // more than one: of one group
    v1::JoinRequest request;  // by which it has joined
    v1::Link link;
  };

  absl::Status CheckLocked(const v1::Lease& lease) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // What the worker has left for a job of the group; nothing if it works for others.
  static std::optional<int64_t> BytesFor(const Worker& worker, const std::string& group);
  static std::string JobsOf(const Worker& worker);
  bool Expired(const Worker& worker) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Of the live worker that joined by this request; InvalidArgument if one joined with its key by
  // another.
  absl::StatusOr<std::optional<v1::Lease>> JoinedBy(const v1::JoinRequest& request) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The worker whose present lease this is, which is dead from now on; errors as of Check.
  absl::StatusOr<Member> MarkDead(const v1::Lease& lease);
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
