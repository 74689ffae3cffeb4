// Ranks that are GPUs, by NCCL through the CUDA plug-in. Buffers are device memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/rendezvous_store.h"
#include "worker/device/device.h"

namespace espalier {

// Groups are made when first met; their first rank hands the NCCL id to the others through `store`,
// for which each waits `timeout` at most, or until `store` is told to give up. InvalidArgument if
// `device` is no CUDA device.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(Device& device, int rank, int size,
                                                          std::unique_ptr<RendezvousStore> store,
                                                          absl::Duration timeout);

}  // namespace espalier
