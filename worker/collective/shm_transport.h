// Tagged messages between the ranks of one host, over one shared-memory channel (shm_channel.h) per
// pair.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/collective/early_messages.h"
#include "worker/collective/rendezvous_store.h"
#include "worker/collective/shm_channel.h"

namespace espalier {

// Not thread-safe, except Abort. Errors are those of Communicator.
class ShmTransport {
 public:
  // All ranks call this. Connects ranks that run as the same user, on the same host and in the same
  // network namespace; containers do not matter. Returns DeadlineExceeded, naming the rank or its
  // missing key, if a rank is absent after `rendezvous_timeout`. `timeout` limits each later wait.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Connect(int rank, int size,
                                                               RendezvousStore& store,
                                                               absl::Duration rendezvous_timeout,
                                                               absl::Duration timeout);

  bool IsLocal(int peer) const { return channels_[peer] != nullptr; }

  // REQUIRES: IsLocal(peer) and bytes > 0. Send does not wait: it copies what the channel has no
  // space for, and later calls send that.
  absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag);
  absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag);

  // Bytes of sends that the channels had no space for yet.
  int64_t pending_bytes() const { return pending_bytes_; }
  // Sends as much of them as there is space for, without waiting. Returns true if some remain.
  bool FlushSends();
  // Waits until at most `max_pending_bytes` remain.
  absl::Status Drain(int64_t max_pending_bytes);
  // Waits until the peers have read everything sent before the previous call.
  absl::Status EndStep();

  void Abort(const std::string& reason);

 private:
  // A pending message.
  struct Copy {
    uint64_t tag = 0;
    std::vector<char> data;
    int64_t done = 0;
  };

  ShmTransport(int size, absl::Duration timeout)
      : timeout_(timeout), channels_(size), peers_(size) {}

  // Waits for `peer` once. Returns DeadlineExceeded after the deadline, Cancelled after Abort. Sets
  // `is_gone` if nothing more can arrive.
  absl::Status WaitFor(int peer, absl::Time deadline, bool* is_gone);

  struct Peer {
    std::deque<Copy> pending;
    uint64_t pushed_last_step = 0;  // at the end of the last step
    EarlyMessages early;
  };
  const absl::Duration timeout_;
  absl::Duration spin_time_;                           // before sleeping on the futex
  std::vector<std::unique_ptr<ShmChannel>> channels_;  // by rank; null: remote, or self
  std::vector<Peer> peers_;
  int64_t pending_bytes_ = 0;

  std::atomic<bool> aborted_ = false;
  absl::Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
