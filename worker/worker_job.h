// Interface of what a worker has loaded: an attempt of a training job, or a rank of a served model.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/collective/communicator.h"

namespace espalier {

struct PeerTimeouts {
  absl::Duration rendezvous;  // for all ranks to arrive
  absl::Duration connect;     // then, to connect to each
  absl::Duration wait;        // for each later wait for a peer
};

// Limits connecting, which cannot be interrupted: with a dead peer the worker could neither stop
// nor rejoin. Abort interrupts later waits, which may take as long as a step.
constexpr absl::Duration kMaxConnectTimeout = absl::Minutes(1);

class WorkerJob {
 public:
  virtual ~WorkerJob() = default;

  // Ends the current call soon with Cancelled, and later ones at once. Thread-safe.
  virtual void Abort(const std::string& reason) = 0;

  // Peers may still be reading this rank's last messages: the caller keeps this a while after the
  // job. Null without peers.
  virtual std::unique_ptr<Communicator> TakeCommunicator() = 0;
};

}  // namespace espalier
