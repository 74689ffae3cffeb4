// Communicators between threads of one process, for tests and measurements.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/rendezvous_store.h"

namespace espalier {

// Returns one communicator per rank. They share mailboxes and may be destroyed in any order. A
// receive returns DeadlineExceeded after `timeout`. Abort of one aborts all, as the death of a
// process would.
std::vector<std::unique_ptr<Communicator>> NewInProcessCommunicators(int size,
                                                                     absl::Duration timeout);

std::unique_ptr<RendezvousStore> NewInProcessStore();

}  // namespace espalier
