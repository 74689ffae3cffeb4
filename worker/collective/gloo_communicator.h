// Ranks that are processes: over TCP by Gloo, and through shared memory (host_links.h) to those of
// the same host. One full mesh of connections per attempt of a job.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/rendezvous_store.h"

namespace espalier {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  // address or name of this machine that the peers reach
  // Of meeting and connecting, each peer by itself. Abort cannot end that: there is no communicator
  // yet.
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration timeout = absl::Seconds(60);  // of each wait for a peer, later
  int64_t max_buffered_bytes = 256 << 20;      // of sends; more wait for the oldest
  bool share_memory = true;                    // with the ranks of this host
};

// Blocks until all ranks have met through `store`, whose keys must be fresh for every attempt.
// Unavailable or DeadlineExceeded, with what Gloo said and what to look at, if they do not.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(const GlooOptions& options,
                                                          RendezvousStore& store);

}  // namespace espalier
