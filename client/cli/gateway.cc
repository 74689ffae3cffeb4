#include "client/cli/gateway.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/gateway_tls.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr int kConnectSeconds = 5;  // also the timeout of each send

class PlainConnection : public GatewayConnection {
 public:
  PlainConnection(const Gateway& gateway, Socket socket)
      : gateway_(gateway), socket_(std::move(socket)) {}

  absl::Status Send(absl::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return Unreachable(gateway_, strerror(errno));
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> Receive(char* block, size_t size) override {
    ssize_t n = 0;
    do {
      n = recv(socket_.fd(), block, size, 0);
    } while (n < 0 && errno == EINTR);
    const int error = errno;
    if (n < 0 && (error == EAGAIN || error == EWOULDBLOCK)) {
      return Unreachable(gateway_,
                         absl::StrCat("nothing came within ", gateway_.answer_seconds, " s"));
    }
    // A TLS server answers plain text with an alert record (RFC 8446, 5.1) or closes.
    constexpr char kAlert = 21;
    if (!answered_ && (n <= 0 || block[0] == kAlert)) {
      const std::string why = n < 0 ? strerror(error) : n == 0 ? "it hung up" : "it speaks TLS";
      return absl::UnavailableError(
          absl::StrCat("the ", gateway_.words.what, " at ", gateway_.authority, " gave no answer (",
                       why, "). If it speaks TLS: ", gateway_.words.flag, "=https://",
                       gateway_.authority, " or ", gateway_.words.trust));
    }
    answered_ = true;
    if (n < 0) return Unreachable(gateway_, strerror(error));
    return static_cast<size_t>(n);
  }

 private:
  const Gateway gateway_;
  Socket socket_;
  bool answered_ = false;
};

absl::StatusOr<Socket> Connect(const Gateway& gateway) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(gateway.host.c_str(), gateway.port.c_str(), &hints, &found);
      error != 0) {
    return Unreachable(gateway, gai_strerror(error));
  }
  int fd = -1, number = 0;
  for (const addrinfo* a = found; a != nullptr && fd < 0; a = a->ai_next) {
    fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) continue;
    const timeval timeout = {kConnectSeconds, 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    const timeval answer = {gateway.answer_seconds, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &answer, sizeof answer);
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
      number = errno;
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  if (fd < 0) return Unreachable(gateway, strerror(number));
  return Socket(fd);
}

}  // namespace

absl::Status Unreachable(const Gateway& gateway, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("no ", gateway.words.what, " answers at ",
                                             gateway.authority, " (", why, "). ",
                                             gateway.words.remedy));
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<Gateway> MakeGateway(const std::string& address, bool wants_tls,
                                    const GatewayTls& tls, const std::string& token) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("HTTP address \"", Printable(address), "\": ", what));
  };
  absl::string_view rest = address;
  const bool https = absl::ConsumePrefix(&rest, "https://");
  const bool http = !https && absl::ConsumePrefix(&rest, "http://");
  if (http && wants_tls) {
    return wrong("http:// does not use TLS, which --tls or --ca-file requires; write https://");
  }
  if (https || http) rest = absl::StripSuffix(rest, "/");
  Gateway gateway;
  gateway.token = token;
  // The port's colon, if any, comes after the bracket that ends an IPv6 address.
  const size_t bracket = rest.rfind(']');
  const size_t colon = rest.rfind(':');
  const bool has_port =
      colon != absl::string_view::npos && (bracket == absl::string_view::npos || colon > bracket);
  absl::string_view host = rest.substr(0, has_port ? colon : rest.size());
  gateway.port = has_port ? std::string(rest.substr(colon + 1)) : https ? "443" : http ? "80" : "";
  int port = 0;
  if (host.empty() || absl::StrContains(rest, "/") || !absl::SimpleAtoi(gateway.port, &port) ||
      port < 1 || port > 65535) {
    return wrong(
        "accepted: HOST:PORT, http://HOST:PORT or https://HOST:PORT, as 127.0.0.1:8080 or "
        "https://llm.example.com");
  }
  gateway.authority = absl::StrCat(host, ":", gateway.port);
  if (absl::ConsumePrefix(&host, "[")) host = absl::StripSuffix(host, "]");
  gateway.host = std::string(host);
  if (!https && !wants_tls) return gateway;
  auto context = MakeTlsContext(tls);
  if (!context.ok()) return context.status();
  gateway.tls = *std::move(context);
  return gateway;
}

absl::StatusOr<std::unique_ptr<GatewayConnection>> GatewayConnection::Open(const Gateway& gateway) {
  auto socket = Connect(gateway);
  if (!socket.ok()) return socket.status();
  if (gateway.tls != nullptr) return OpenTls(gateway, *std::move(socket));
  return std::make_unique<PlainConnection>(gateway, *std::move(socket));
}

}  // namespace espalier
