// Ranks that are threads of one process, for tests and for measuring.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/rendezvous_store.h"

namespace espalier {

// One communicator per rank. They share their mailboxes and may be destroyed in any order. A
// receive that waits longer than `timeout` is DeadlineExceeded; Abort of one ends all of them, as
// the death of a process would.
std::vector<std::unique_ptr<Communicator>> NewInProcessCommunicators(int size,
                                                                     absl::Duration timeout);

std::unique_ptr<RendezvousStore> NewInProcessStore();

}  // namespace espalier
