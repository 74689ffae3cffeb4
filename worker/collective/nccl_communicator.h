// Ranks that are GPUs, by NCCL through the CUDA plug-in. Buffers are device memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/rendezvous_store.h"
#include "worker/device/device.h"

namespace espalier {

// `store` must outlive the communicator: groups are made when first met, and their first rank hands
// the NCCL id to the others through it. InvalidArgument if `device` is no CUDA device.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(Device& device, int rank, int size,
                                                          RendezvousStore& store,
                                                          absl::Duration timeout);

}  // namespace espalier
