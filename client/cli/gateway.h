// The address of an HTTP server, most often the gateway, and connections to it with or without TLS.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// PEM texts. Empty: the system's roots; no client certificate.
struct GatewayTls {
  std::string ca;
  std::string certificate;  // client certificate chain, leaf first, if the gateway asks for one
  std::string key;
};

class TlsContext;  // wraps OpenSSL's SSL_CTX; shared by connections

// What errors call the server, and how they say that it is started and named.
struct GatewayWords {
  std::string what = "HTTP gateway";
  std::string flag = "--http-address";
  std::string remedy =
      "Start one with `espalier up`, or name another: --http-address=HOST:PORT or ESPALIER_HTTP";
  std::string trust = "--ca-file=FILE or ESPALIER_CA_FILE";
};

struct Gateway {
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string authority;                  // host:port, for the Host header and messages
  std::string token;                      // sent as "Authorization: Bearer TOKEN"; empty: none
  std::shared_ptr<const TlsContext> tls;  // null: no TLS
  int answer_seconds = 0;                 // longest wait for more of an answer; 0: any
  GatewayWords words;
};

// Parses `address`: HOST:PORT, http://HOST[:PORT] or https://HOST[:PORT]. TLS is used with
// https://, and without a scheme if `wants_tls`. Returns InvalidArgument for other forms, for
// http:// if TLS is wanted, and for PEM text without an entry of its kind, naming it.
absl::StatusOr<Gateway> MakeGateway(const std::string& address, bool wants_tls,
                                    const GatewayTls& tls, const std::string& token);

// One connection; calls block. REQUIRES: with TLS, SIGPIPE is ignored in this process.
class GatewayConnection {
 public:
  // Connects; with TLS, verifies the gateway's certificate and host name. Returns Unavailable,
  // naming the address and a remedy, if it does not answer or is not trusted.
  static absl::StatusOr<std::unique_ptr<GatewayConnection>> Open(const Gateway& gateway);
  virtual ~GatewayConnection() = default;

  virtual absl::Status Send(absl::string_view bytes) = 0;
  // Returns the number of bytes stored in `block`; 0 if the peer has closed in good order.
  virtual absl::StatusOr<size_t> Receive(char* block, size_t size) = 0;
};

}  // namespace espalier
