// Test helper: a TCP client on loopback that sends arbitrary bytes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace espalier {

class RawClient {
 public:
  // `receive_buffer`: approximate size of the kernel's receive buffer; 0: the default.
  explicit RawClient(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    SetTimeout(10);
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  int fd() const { return fd_; }
  bool connected() const { return connected_; }
  bool timed_out() const { return timed_out_; }  // the last Read

  // Applies to each read and write.
  void SetTimeout(int seconds) {
    const timeval timeout{seconds, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  }

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Resets the connection, which leaves no port in TIME_WAIT; there are only so many.
  void Abort() {
    const linger none{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    Close();
  }
  void CloseHalf() { shutdown(fd_, SHUT_WR); }

  // Returns false if the server accepts no more.
  bool Send(absl::string_view data) {
    while (!data.empty()) {
      const ssize_t n = send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      data.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Reads at most `most` bytes; "" at the end or after a timeout.
  std::string Read(size_t most) {
    std::string data(most, 0);
    const ssize_t n = recv(fd_, data.data(), most, 0);
    timed_out_ = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    data.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return data;
  }

  // Reads until `end` has appeared or the server closes.
  std::string ReadUntil(absl::string_view end) {
    std::string all;
    while (!absl::StrContains(all, end)) {
      const std::string some = Read(4096);
      if (some.empty()) break;
      all += some;
    }
    return all;
  }

  // Reads until the server closes.
  std::string ReadAll() {
    std::string all;
    for (std::string some; !(some = Read(1 << 16)).empty();) all += some;
    return all;
  }

 private:
  int fd_;
  bool connected_ = false;
  bool timed_out_ = false;
};

}  // namespace espalier
