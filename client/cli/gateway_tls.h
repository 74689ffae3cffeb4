// The TLS half of gateway.h, by OpenSSL.
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

// Unavailable, saying how to start a gateway or to name another.
absl::Status Unreachable(const std::string& authority, const std::string& why);

// InvalidArgument, naming the flag, for PEM text that holds nothing of its kind or a key that is
// not the certificate's.
absl::StatusOr<std::shared_ptr<const TlsContext>> MakeTlsContext(const GatewayTls& tls);

// Handshake on a connected socket. `gateway.tls` is there.
absl::StatusOr<std::unique_ptr<GatewayConnection>> OpenTls(const Gateway& gateway, Socket socket);

}  // namespace espalier
