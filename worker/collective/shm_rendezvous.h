// Rendezvous of ranks of one host, which sets up their shared memory.
//
// Each rank publishes its host, its socket address and a secret in the job's store. Of two ranks of
// one host the higher one connects to the lower one, proves itself with the secret and passes the
// memory's file descriptor. If this fails, the pair has no channel. Abstract-namespace sockets need
// no common writable folder and vanish with their process.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/rendezvous_store.h"
#include "worker/collective/shm_channel.h"

namespace espalier {

// Returns channels by rank; null where there is none. See ShmTransport::Connect.
absl::StatusOr<std::vector<std::unique_ptr<ShmChannel>>> ConnectShmChannels(int rank, int size,
                                                                            RendezvousStore& store,
                                                                            absl::Duration timeout);

}  // namespace espalier
