// How ranks of one host find each other and come to share memory.
//
// Every rank says through the job's store on which host it is and where it listens, with a secret.
// Of two ranks of one host the higher one calls the lower one, shows the secret and hands over the
// memory; where that fails, both do without. A socket in the abstract namespace needs no folder
// that both could write to, and goes with its process.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/rendezvous_store.h"
#include "worker/collective/shm_channel.h"

namespace espalier {

// By rank; null where there is none. See ShmTransport::Connect.
absl::StatusOr<std::vector<std::unique_ptr<ShmChannel>>> ConnectShmChannels(int rank, int size,
                                                                    RendezvousStore& store,
                                                                    absl::Duration timeout);

}  // namespace espalier
