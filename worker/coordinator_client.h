// Client of the coordinator's services that a worker uses: membership, rendezvous store, artifacts.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/net/api_keys.h"
#include "base/net/transport_security.h"
#include "espalier/v1/cluster.grpc.pb.h"
#include "espalier/v1/models.grpc.pb.h"
#include "espalier/v1/storage.grpc.pb.h"
#include "worker/collective/rendezvous_store.h"

namespace espalier {

// Thread-safe. Errors name the coordinator's address.
class CoordinatorClient {
 public:
  // Every call carries `key`; null: none. Uses TLS if tls.calls().
  // `addresses`: see LeadingChannel.
  explicit CoordinatorClient(const std::vector<std::string>& addresses,
                             const ShownKey& key = nullptr,
                             const TransportSecurity& tls = TransportSecurity());

  const std::string& address() const { return address_; }

  absl::StatusOr<v1::JoinReply> Join(const v1::JoinRequest& request);
  absl::StatusOr<v1::HeartbeatReply> Heartbeat(const v1::HeartbeatRequest& request,
                                               absl::Duration timeout);
  absl::StatusOr<v1::DrainReply> Drain(const v1::Lease& lease, absl::Duration timeout);
  absl::Status Leave(const v1::Lease& lease);
  v1::Models::StubInterface& models() { return *models_; }
  // On a connection of its own each: heartbeats do not wait behind what it moves, and nothing waits
  // until an earlier one turns out to lead to a host that is gone.
  std::shared_ptr<v1::Storage::StubInterface> NewStorage() const { return new_storage_(); }

  // Returns the store of one attempt of a job. Get polls `cancelled` while it waits. Must not
  // outlive this.
  std::unique_ptr<RendezvousStore> Store(const v1::Lease& lease, const std::string& job_id,
                                         uint64_t attempt, std::function<bool()> cancelled);

 private:
  const std::string address_;
  std::unique_ptr<v1::Cluster::Stub> cluster_;
  std::unique_ptr<v1::Models::Stub> models_;
  std::function<std::shared_ptr<v1::Storage::StubInterface>()> new_storage_;
};

}  // namespace espalier
