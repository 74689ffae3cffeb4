// EtcdApi over gRPC, to whichever of several endpoints answers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/net/transport_security.h"
#include "server/store/etcd/etcd_api.h"

namespace espalier {

struct EtcdClientOptions {
  std::vector<std::string> endpoints;  // host:port
  TransportSecurity tls;               // used if tls.calls()
  std::string user, password;          // empty: etcd asks for none
  absl::Duration call_timeout = absl::Seconds(2);
};

class EtcdClient : public EtcdApi {
 public:
  // Does not connect yet.
  explicit EtcdClient(EtcdClientOptions options);
  ~EtcdClient() override;

  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) override;
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request) override;
  absl::StatusOr<Lease> GrantLease(absl::Duration ttl) override;
  absl::StatusOr<absl::Duration> KeepAlive(int64_t lease) override;
  absl::Status RevokeLease(int64_t lease) override;

 private:
  struct Endpoint;
  struct Call;

  // Runs `call` on the current endpoint with a deadline and, if etcd asks for one, a token. If the
  // endpoint does not answer, the next call goes to the next one.
  template <typename Body>
  absl::Status Run(Body body);
  absl::StatusOr<std::string> Token(Endpoint& endpoint);
  void ForgetToken(const std::string& token);
  Endpoint& Current();
  // Makes the endpoint after `failed` the current one, unless another thread already has.
  void Leave(const Endpoint& failed);

  const EtcdClientOptions options_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  absl::Mutex mutex_;
  size_t current_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
