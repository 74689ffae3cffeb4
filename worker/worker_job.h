// What a worker has loaded: one attempt of a job, or one rank of a served model.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/collective/communicator.h"

namespace espalier {

struct PeerTimeouts {
  absl::Duration meeting;  // until the last rank is there
  absl::Duration connect;  // to each of them, then
  absl::Duration wait;     // of each wait for a peer, later
};

// Of connecting, which nothing ends before: a worker whose peer has died meanwhile would neither
// stop nor join anew. Later waits end with Abort, and may be as long as a step.
constexpr absl::Duration kMaxConnectTimeout = absl::Minutes(1);

class WorkerJob {
 public:
  virtual ~WorkerJob() = default;

  // From any thread: ends what runs soon with Cancelled, and everything later at once.
  virtual void Abort(const std::string& reason) = 0;

  // Peers may still be reading what this rank sent last: who drops a finished job keeps this a
  // while. Null if there are no peers.
  virtual std::unique_ptr<Communicator> TakeCommunicator() = 0;
};

}  // namespace espalier
