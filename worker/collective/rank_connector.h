// Connects one rank of an attempt with its peers: chooses the transports, and refuses what would
// put tensors on a network in clear that the operator has not called trusted.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/peer_links.h"
#include "worker/collective/peer_monitor.h"
#include "worker/collective/rendezvous_store.h"

namespace espalier {

struct RankOptions {
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  // address or name of this machine that the peers reach
  NetworkPolicy network;
  bool is_cuda = false;  // this rank's device
  absl::Duration rendezvous_timeout = absl::Seconds(60);
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration timeout = absl::Seconds(60);  // of each later wait for a peer
  absl::Duration silence = absl::Seconds(20);  // see PeerMonitorOptions
  bool several_hosts = false;  // takes ranks of this host for ranks of others; for tests
};

// ConnectNccl on this rank's device.
using NcclConnector = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
    std::unique_ptr<RendezvousStore> store, std::unique_ptr<PeerMonitor> monitor)>;

// NCCL if the devices of all ranks are GPUs, otherwise messages between the hosts' memories.
// Returns PermissionDenied for NCCL between hosts on a network that is not trusted: NCCL does not
// encrypt. Other errors are those of PeerMonitor and ConnectProcesses.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectRanks(const RankOptions& options,
                                                           std::unique_ptr<RendezvousStore> store,
                                                           const NcclConnector& connect_nccl);

}  // namespace espalier
