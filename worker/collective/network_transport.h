// Tagged messages between ranks of different hosts, over the connections of peer_links.h.
//
// A send writes what the connection takes and copies the rest, which a thread sends while the rank
// computes. A receive reads into its place on the thread that asks. Until it asks, what arrives
// waits in the kernel's buffers, which then hold up the sender.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/collective/descriptor.h"
#include "worker/collective/early_messages.h"
#include "worker/collective/message_stream.h"
#include "worker/collective/peer_links.h"

namespace espalier {

struct NetworkTransportOptions {
  absl::Duration timeout = absl::Seconds(60);  // of each wait in which no byte moves
  int64_t max_buffered_bytes = 256 << 20;      // of sends; further ones wait
  // Called now and then while a call waits: continues what else this thread has to send, and
  // returns whether some of that remains. Otherwise a peer that waits for it, and on which the
  // awaited one depends, would deadlock.
  std::function<bool()> meanwhile = [] { return false; };
};

// Not thread-safe, except End. Errors are those of Communicator.
class NetworkTransport {
 public:
  NetworkTransport(std::map<int, PeerLink> links, NetworkTransportOptions options);
  // Drops what is not sent yet. What the connections have taken still arrives.
  ~NetworkTransport();

  bool Connects(int peer) const { return peers_.count(peer) > 0; }

  // REQUIRES: Connects(peer) and bytes > 0.
  absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag);
  absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag);
  // Waits until the connections have taken all sends.
  absl::Status Flush();
  // Waits for those before the previous call.
  absl::Status EndStep();

  // Ends pending and all later calls with `status`, unless they have already ended. Thread-safe.
  void End(const absl::Status& status);

 private:
  struct Peer {
    PeerLink link;
    MessageWriter writer;  // of the thread while the peer's queue has messages, else of the caller
    MessageReader reader;
    EarlyMessages early;
  };
  struct PendingSend {
    uint64_t tag = 0;
    int64_t bytes = 0;
    std::unique_ptr<char[]> data;
    int64_t done = 0;
    int64_t step = 0;
  };

  void SendPending();
  // Sends some of the peer's first pending message.
  void Continue(int peer);
  absl::Status Failed(const char* what, int peer, const absl::Status& why);
  absl::Status Ended();
  // Waits, at most until nothing moves any more for the timeout. `done` is called with mutex_ held.
  absl::Status WaitForSends(absl::FunctionRef<bool()> done);
  absl::Status WaitToRead(int peer, absl::Time deadline);
  bool HasPending(int peer);

  // Buffers are kept and reused: steps send the same sizes again, and fresh memory would be mapped,
  // cleared and unmapped, which takes longer than the copy.
  std::unique_ptr<char[]> TakeMemory(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseMemory(std::unique_ptr<char[]> memory, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const NetworkTransportOptions options_;
  std::map<int, Peer> peers_;
  Descriptor to_send_;      // eventfd: there is more to send, or the end
  Descriptor ended_event_;  // eventfd, readable for good after End

  absl::Mutex mutex_;
  absl::CondVar sent_some_;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, std::deque<PendingSend>> pending_ ABSL_GUARDED_BY(mutex_);  // none is empty
  int64_t buffered_ ABSL_GUARDED_BY(mutex_) = 0;  // of pending_, not sent yet
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;      // of those that were pending
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::vector<std::unique_ptr<char[]>>> free_ ABSL_GUARDED_BY(mutex_);  // by size
  int64_t free_bytes_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread thread_;  // sends what is pending
};

}  // namespace espalier
