// What a coordinator answers while another one leads: that it stands by, and for whom.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/transport_security.h"
#include "server/http/http_server.h"

namespace espalier {

struct StandbyServerOptions {
  std::string listen;       // host:port of gRPC
  std::string http_listen;  // host:port of HTTP; empty: none
  TransportSecurity tls;
  HttpCertificates http_certificates;
  // "standby; the leader is HOST:PORT"
  std::function<std::string()> describe;
  // Whether the caller with this "authorization" may know who leads. Null: everyone.
  std::function<bool(const std::string& authorization)> knows;
  // Whether only the leader, who has the job store, can tell who shows this. Null: nobody does.
  std::function<bool(const std::string& authorization)> only_leader_knows;
  bool open_probes = false;  // /health and /ready are answered to everyone
};

// Every gRPC call gets Unavailable with the description; HTTP: /health 200, anything else 503.
class StandbyServer {
 public:
  // Unavailable: an address is taken.
  static absl::StatusOr<std::unique_ptr<StandbyServer>> Start(StandbyServerOptions options);
  virtual ~StandbyServer() = default;  // stops to listen

  // With the bound ports.
  virtual std::string grpc_address() const = 0;
  virtual std::string http_address() const = 0;
  virtual absl::Status SetHttpCertificates(const HttpCertificates& certificates) = 0;
};

}  // namespace espalier
