// The links (shared_link.h) of a rank to the others of its host: which there are, and messages with
// tags over them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/collective/rendezvous_store.h"
#include "worker/collective/shm_channel.h"

namespace espalier {

// Used by one thread; Abort by any. Errors are those of a Communicator.
class ShmTransport {
 public:
  // All ranks call it. Whoever runs as the same user, on the same host and in the same network
  // namespace gets a link, whatever the containers. DeadlineExceeded, naming the rank or what it
  // did not say, if one of them has not come within `rendezvous_timeout`. `timeout`: of each later wait.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Connect(int rank, int size,
                                                            RendezvousStore& store,
                                                            absl::Duration rendezvous_timeout,
                                                            absl::Duration timeout);

  bool IsLocal(int peer) const { return channels_[peer] != nullptr; }

  // To and from peers that it reaches, more than 0 bytes. Send does not wait: what there is no room
  // for is copied, and goes on in later calls.
  absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag);
  absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag);

  // Bytes of sends for which there is no room yet.
  int64_t pending_bytes() const { return pending_bytes_; }
  // Goes on with those sends, without waiting; whether some still wait.
  bool FlushSends();
  // Waits until at most so many bytes do.
  absl::Status Drain(int64_t max_pending_bytes);
  // Waits until the peers have read what was sent before the last call of this.
  absl::Status EndStep();

  void Abort(const std::string& reason);

 private:
  // A message without room, or one that came before it was asked for.
  struct Copy {
    uint64_t tag = 0;
    std::vector<char> data;
    int64_t done = 0;
  };

  ShmTransport(int size, absl::Duration timeout) : timeout_(timeout), channels_(size), peers_(size) {}

  // Waits for `peer` once. DeadlineExceeded after the deadline, Cancelled after Abort. `is_gone` if
  // nothing more can come.
  absl::Status WaitFor(int peer, absl::Time deadline, bool* is_gone);

  struct Peer {
    std::deque<Copy> unsent;
    uint64_t pushed_before = 0;                                 // at the end of the last step
    std::map<uint64_t, std::deque<std::vector<char>>> unexpected;  // by tag
  };
  const absl::Duration timeout_;
  absl::Duration spin_time_;                            // how long it looks before it sleeps
  std::vector<std::unique_ptr<ShmChannel>> channels_;  // by rank; null: not of this host, or itself
  std::vector<Peer> peers_;
  int64_t pending_bytes_ = 0;

  std::atomic<bool> aborted_ = false;
  absl::Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
