// Completes what a worker was started with: the coordinator, its own address and, where it joins by
// a token, its certificate.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "worker/kept_identity.h"
#include "worker/local_worker.h"

namespace espalier {

struct JoinedCluster {
  WorkerOptions options;  // complete
  std::unique_ptr<Clock> clock;
  std::unique_ptr<CertificateSource> source;
  std::unique_ptr<KeptIdentity> identity;  // null if there is none; options.tls are its files
};

// Reads the token; takes the coordinator's address from it, if none is given; finds the address of
// the interface that reaches the coordinator, if this worker is to listen on none that is given;
// and gets a certificate, for a token or for one that is kept. A worker off loopback without
// certificates or a key of its own and without --insecure uses one that is kept.
absl::StatusOr<JoinedCluster> JoinCluster(WorkerOptions options);

}  // namespace espalier
