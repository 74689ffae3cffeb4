#include "worker/collective/byte_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace espalier {
namespace {

constexpr int64_t kReadAhead = 64 << 10;

class PlainStream : public ByteStream {
 public:
  using ByteStream::ByteStream;

  absl::StatusOr<short> Handshake() override { return short{0}; }

  absl::StatusOr<int64_t> Write(const char* data, int64_t bytes) override {
    while (true) {
      const ssize_t sent =
          send(socket(), data, static_cast<size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) return sent;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
      if (errno != EINTR) return SocketError(errno);
    }
  }

  // Small reads come from a buffer, so that a small message takes one system call; large ones go to
  // their place at once.
  absl::StatusOr<int64_t> Read(char* data, int64_t bytes) override {
    if (begin_ == end_ && bytes >= kReadAhead) return ReceiveInto(data, bytes);
    if (begin_ == end_) {
      buffer_.resize(kReadAhead);
      absl::StatusOr<int64_t> got = ReceiveInto(buffer_.data(), kReadAhead);
      if (!got.ok()) return got;
      begin_ = 0;
      end_ = *got;
    }
    const int64_t taken = std::min(bytes, end_ - begin_);
    std::memcpy(data, buffer_.data() + begin_, static_cast<size_t>(taken));
    begin_ += taken;
    return taken;
  }

 private:
  absl::StatusOr<int64_t> ReceiveInto(char* data, int64_t bytes) {
    while (true) {
      const ssize_t got = recv(socket(), data, static_cast<size_t>(bytes), MSG_DONTWAIT);
      if (got > 0) return got;
      if (got == 0) return SocketError(0);
      if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
      if (errno != EINTR) return SocketError(errno);
    }
  }

  std::vector<char> buffer_;
  int64_t begin_ = 0, end_ = 0;  // of what is buffered
};

}  // namespace

absl::Status SocketError(int error) {
  if (error == 0 || error == ECONNRESET || error == EPIPE) {
    return absl::OutOfRangeError("it has closed its connection");
  }
  return absl::UnavailableError(std::strerror(error));
}

std::unique_ptr<ByteStream> NewPlainStream(Descriptor socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

}  // namespace espalier
