// TLS connections for gateway.h, using OpenSSL.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/gateway.h"

namespace espalier {

// Owns a file descriptor.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Returns Unavailable with advice to start a server or to name another.
absl::Status Unreachable(const Gateway& gateway, const std::string& why);

// Returns InvalidArgument, naming the flag, for PEM text without an entry of its kind or a key that
// does not match the certificate.
absl::StatusOr<std::shared_ptr<const TlsContext>> MakeTlsContext(const GatewayTls& tls);

// Does the TLS handshake on a connected socket. REQUIRES: gateway.tls is not null.
absl::StatusOr<std::unique_ptr<GatewayConnection>> OpenTls(const Gateway& gateway, Socket socket);

}  // namespace espalier
