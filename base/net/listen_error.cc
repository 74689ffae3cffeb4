#include "base/net/listen_error.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/net/own_address.h"

namespace espalier {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* it) const { freeaddrinfo(it); }
};

// Returns 0 if one can listen there.
int TryToListen(const addrinfo& address) {
  const int file = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0) return errno;
  const int on = 1;
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool listens =
      bind(file, address.ai_addr, address.ai_addrlen) == 0 && listen(file, /*backlog=*/1) == 0;
  const int error = listens ? 0 : errno;
  close(file);
  return error;
}

std::string WhyNot(const std::string& text) {
  const absl::StatusOr<HostAndPort> address = ParseHostAndPort(text, "the address");
  if (!address.ok()) return std::string(address.status().message());
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address->port);
  if (const int error = getaddrinfo(address->host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return absl::StrCat("this host does not know the name ", address->host, " (",
                        gai_strerror(error), ")");
  }
  const std::unique_ptr<addrinfo, FreeAddresses> owner(found);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    switch (const int error = TryToListen(*one)) {
      case 0:
        continue;
      case EADDRNOTAVAIL:
        return "this host has no such address; `ip address` shows those that it has, and 0.0.0.0 "
               "stands for all of them";
      case EADDRINUSE:
        return absl::StrCat("the port is in use; `ss -ltnp sport = :", port,
                            "` shows by which program");
      case EACCES:
        return "this user may not; ports below 1024 are for root";
      default:
        return std::strerror(error);
    }
  }
  return "the port is free now; start again, and if that fails, the lines above say why";
}

}  // namespace

absl::Status CannotListen(const std::string& address) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", WhyNot(address)));
}

}  // namespace espalier
