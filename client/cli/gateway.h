// Where an HTTP gateway is, and connections to it: in the clear or over TLS.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// PEM; empty: the system's roots, no certificate of one's own.
struct GatewayTls {
  std::string ca;
  std::string certificate;  // a chain, own certificate first, where the gateway asks for one
  std::string key;
};

class TlsContext;  // OpenSSL's, shared by connections

struct Gateway {
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string authority;                  // host:port, as the Host header and messages have it
  std::string token;                      // shown as "Authorization: Bearer TOKEN"; empty: none
  std::shared_ptr<const TlsContext> tls;  // null: in the clear
};

// `address` is HOST:PORT, http://HOST[:PORT] or https://HOST[:PORT]. TLS with https://, and without
// a scheme if `wants_tls`. InvalidArgument for another form, for http:// where TLS is wanted, and,
// saying which, for PEM text that holds nothing of its kind.
absl::StatusOr<Gateway> MakeGateway(const std::string& address, bool wants_tls,
                                    const GatewayTls& tls, const std::string& token);

// One connection; calls block. SIGPIPE has to be ignored in this process where TLS is spoken.
class GatewayConnection {
 public:
  // Connects, and with TLS verifies the gateway's certificate and that it is one for the host.
  // Unavailable, naming the address and what to do, if nobody answers or it is not trusted.
  static absl::StatusOr<std::unique_ptr<GatewayConnection>> Open(const Gateway& gateway);
  virtual ~GatewayConnection() = default;

  virtual absl::Status Send(absl::string_view bytes) = 0;
  // Bytes put into `block`; 0: the other side has closed in good order.
  virtual absl::StatusOr<size_t> Receive(char* block, size_t size) = 0;
};

}  // namespace espalier
