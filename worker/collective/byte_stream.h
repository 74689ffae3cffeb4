// A TCP connection between two ranks, in clear or encrypted (tls_stream.h), that never blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collective/descriptor.h"

namespace espalier {

// Not thread-safe. Errors are final: OutOfRange once the other end has closed the connection,
// Unauthenticated if it is not who was expected, otherwise Unavailable.
class ByteStream {
 public:
  explicit ByteStream(Descriptor socket) : socket_(std::move(socket)) {}
  virtual ~ByteStream() = default;

  int socket() const { return socket_.get(); }

  // Returns 0 when both ends are ready to read and write, else what to poll the socket for before
  // the next call.
  virtual absl::StatusOr<short> Handshake() = 0;
  // Returns how many bytes were written; 0: wait until the socket can be written. After 0 the next
  // call must offer the same bytes again, at any address.
  virtual absl::StatusOr<int64_t> Write(const char* data, int64_t bytes) = 0;
  // Returns how many bytes were read; 0: wait until the socket can be read. Read may keep bytes
  // that have arrived, so call it until it returns 0 before waiting.
  virtual absl::StatusOr<int64_t> Read(char* data, int64_t bytes) = 0;
  // Identifies the certificate that the other end has proved to own; empty in clear.
  virtual std::string peer_fingerprint() const { return ""; }

 private:
  const Descriptor socket_;
};

// The error of a socket's call that set `error`.
absl::Status SocketError(int error);

std::unique_ptr<ByteStream> NewPlainStream(Descriptor socket);

}  // namespace espalier
