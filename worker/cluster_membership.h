// A worker's membership of the cluster: it joins, keeps its lease by heartbeats, joins again when
// the lease is lost, and says that it is about to leave.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "espalier/v1/cluster.pb.h"
#include "worker/coordinator_client.h"
#include "worker/storage/worker_storage.h"
#include "worker/worker_service.h"

namespace espalier {

struct ClusterMembershipOptions {
  std::string coordinator;  // its addresses, for messages
  v1::JoinRequest request;  // without a key
  // How long the first join is tried.
  absl::Duration join_timeout;
  // These must outlive the membership.
  CoordinatorClient* client = nullptr;
  WorkerService* service = nullptr;  // gets each lease; its jobs end when one is lost
  WorkerStorage* storage = nullptr;
  std::function<void(const v1::JoinReply&)> on_joined;  // before the lease is used
};

// Thread-safe.
class ClusterMembership {
 public:
  explicit ClusterMembership(ClusterMembershipOptions options) : options_(std::move(options)) {}
  ~ClusterMembership() { Stop(); }

  // Joins, and sends heartbeats from then on. Blocks for at most join_timeout while the coordinator
  // cannot be reached; what it refuses is final.
  absl::Status Start();
  // Ends the heartbeats. Idempotent.
  void Stop();
  // Ends the lease, if there is one. After Stop.
  void Leave();

  // As LocalWorker has them.
  void Drain(absl::Duration timeout);
  void EndDrain();

  // Empty while it has not joined.
  std::string worker_id() const;
  struct Lease {
    v1::Lease lease;
    absl::Duration time;  // without a heartbeat for so long, the worker counts as dead
  };
  Lease lease() const;  // the last one

 private:
  // `answered`, if given: whether the coordinator let it join.
  absl::Status Join(const std::string& key, bool* answered = nullptr);
  absl::Status FirstJoin();
  // Shorter once the worker drains, which it is about to announce. Returns false when stopping.
  bool SleepUnlessStopping(absl::Duration duration);
  // Until the coordinator knows it.
  void AnnounceDrain(const v1::Lease& lease);
  void SetDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration SinceAnswer() const;
  void OnLeaseLost(const std::string& reason);
  void HeartbeatLoop();

  const ClusterMembershipOptions options_;
  const SteadyClock clock_;  // of the lease
  std::thread thread_;

  mutable absl::Mutex mutex_;
  absl::CondVar stop_, drain_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool announces_ ABSL_GUARDED_BY(mutex_) = false;  // wakes the heartbeats
  uint64_t announced_ ABSL_GUARDED_BY(mutex_) = 0;  // epoch of the lease under which it drains
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_answer_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  v1::Lease lease_ ABSL_GUARDED_BY(mutex_);
  absl::Duration heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
  absl::Duration lease_time_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(5);
};

}  // namespace espalier
