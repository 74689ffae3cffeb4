// ElectionStore in etcd: a candidacy is a key PREFIX/leader/LEASE that is attached to the lease,
// and its create revision is the epoch.
#pragma once

#include <memory>
#include <string>

#include "server/election/election.h"
#include "server/store/etcd/etcd_api.h"

namespace espalier {

// `etcd` must outlive it.
std::unique_ptr<ElectionStore> NewEtcdElectionStore(EtcdApi* etcd, const std::string& prefix);

}  // namespace espalier
