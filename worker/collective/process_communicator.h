// Communicator between processes: shared memory (shm_transport.h) between ranks of one host, TLS or
// plain TCP (network_transport.h) between hosts. They only move bytes; the collectives are
// those of host_communicator.h. Each attempt of a job connects one full mesh.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/peer_links.h"
#include "worker/collective/peer_monitor.h"
#include "worker/collective/rendezvous_store.h"

namespace espalier {

struct ProcessCommunicatorOptions {
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  // address or name of this machine that the peers reach
  NetworkPolicy network;
  // Limits each rendezvous, and the connections. Abort cannot interrupt these: the communicator
  // does not exist yet.
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration timeout = absl::Seconds(60);  // of each later wait for a peer
  int64_t max_buffered_bytes = 256 << 20;      // of sends; further ones wait for the oldest
  bool share_memory = true;                    // between ranks of one host
};

// Blocks until all ranks have met through `store`, whose keys must be new for every attempt.
// Returns Unavailable or DeadlineExceeded, with the pair and what to check, if they do not, and
// PermissionDenied if they do not agree on encryption. `monitor` ends pending and later calls when
// a peer falls silent; it may be null.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectProcesses(
    const ProcessCommunicatorOptions& options, RendezvousStore& store,
    std::unique_ptr<PeerMonitor> monitor = nullptr);

}  // namespace espalier
