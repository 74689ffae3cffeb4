// espalierd with a job store that several coordinators share: it stands by until it leads.
#pragma once

#include <signal.h>

#include <memory>

#include "absl/status/statusor.h"
#include "server/coordinator.h"
#include "server/daemon_credentials.h"
#include "server/daemon_options.h"
#include "server/standby/shared_store.h"

namespace espalier {

// The exit status of a leader that may not lead any more: start it again, to stand by.
inline constexpr int kLeadershipLost = 75;  // EX_TEMPFAIL

// Answers that it stands by, until this coordinator leads. Then returns the store, and puts the
// ports that were bound into *options; from then on the process ends with kLeadershipLost as soon
// as it may not lead any more. Returns null for a store that is not shared, and Cancelled if a
// signal comes first.
absl::StatusOr<std::unique_ptr<SharedStore>> WaitToLead(DaemonOptions* options,
                                                        const DaemonCredentials& credentials,
                                                        const sigset_t& signals);

// Makes a coordinator use the store; null: its own.
void UseStore(SharedStore* store, CoordinatorOptions* options);

}  // namespace espalier
