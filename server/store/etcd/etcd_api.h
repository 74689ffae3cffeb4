// The calls of etcd's API that Espalier makes, as an interface, so that faults can be simulated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "third_party/etcd/rpc.pb.h"

namespace espalier {

// Thread-safe. One call is one attempt. After Unavailable or DeadlineExceeded it is unknown whether
// a change was made, or will be; every other error means that nothing was changed.
class EtcdApi {
 public:
  virtual ~EtcdApi() = default;

  virtual absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) = 0;
  virtual absl::StatusOr<etcdserverpb::TxnResponse> Txn(
      const etcdserverpb::TxnRequest& request) = 0;

  struct Lease {
    int64_t id = 0;
    absl::Duration ttl;  // etcd may give more than was asked for
  };
  virtual absl::StatusOr<Lease> GrantLease(absl::Duration ttl) = 0;
  // Returns the time from now at which the lease ends without another call; zero: it has ended.
  virtual absl::StatusOr<absl::Duration> KeepAlive(int64_t lease) = 0;
  // Ends the lease and deletes the keys that are attached to it.
  virtual absl::Status RevokeLease(int64_t lease) = 0;
};

}  // namespace espalier
