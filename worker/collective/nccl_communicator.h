// Communicator between GPUs, by NCCL through the CUDA plug-in. Buffers are device memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ops/cuda/runtime/plugin.h"
#include "worker/collective/communicator.h"
#include "worker/collective/peer_monitor.h"
#include "worker/collective/rendezvous_store.h"
#include "worker/device/device.h"

namespace espalier {

// Creates a NCCL communicator at the first use of each group; its first rank publishes the NCCL id
// through `store`. `timeout` limits each wait: for the other ranks, for a call, and for the GPU in
// Flush; waiting for the id also ends when `store` cancels. Returns InvalidArgument if `device` is
// not a CUDA device. `monitor` ends pending and later calls when a peer falls silent; it may be
// null.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(Device& device, int rank, int size,
                                                          std::unique_ptr<RendezvousStore> store,
                                                          absl::Duration timeout,
                                                          std::unique_ptr<PeerMonitor> monitor);

// The same by a plug-in's device `ordinal`.
std::unique_ptr<Communicator> NewNcclCommunicator(CudaPlugin* plugin, int ordinal, Device& device,
                                                  int rank, int size,
                                                  std::unique_ptr<RendezvousStore> store,
                                                  absl::Duration timeout,
                                                  std::unique_ptr<PeerMonitor> monitor);

}  // namespace espalier
