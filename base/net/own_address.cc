#include "base/net/own_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/net/transport_security.h"

namespace espalier {
namespace {

// RFC 5737 and RFC 3849: they belong to nobody, so the default route leads to them.
constexpr const char* kElsewhere[] = {"192.0.2.1:9", "[2001:db8::1]:9"};

struct FreeInfo {
  void operator()(addrinfo* it) const { freeaddrinfo(it); }
};
struct FreeInterfaces {
  void operator()(ifaddrs* it) const { freeifaddrs(it); }
};

std::string TextOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  } else {
    return "";
  }
  return inet_ntop(address->sa_family, bytes, text, sizeof text) == nullptr ? "" : text;
}

bool IsLinkLocal(const std::string& address) {
  return absl::StartsWith(address, "fe80:") || absl::StartsWith(address, "169.254.");
}

std::vector<std::string> InterfaceAddresses() {
  std::vector<std::string> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  const std::unique_ptr<ifaddrs, FreeInterfaces> owner(list);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const std::string text = TextOf(at->ifa_addr);
    // Their numbers need a zone, which certificates do not have.
    if (!text.empty() && !IsLinkLocal(text)) out.push_back(text);
  }
  return out;
}

}  // namespace

absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& text, const std::string& what) {
  HostAndPort out;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &out.port) || out.port < 0 || out.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is '", text, "'; accepted: host:port"));
  }
  out.host = text.substr(0, colon);
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  }
  return out;
}

std::string JoinHostAndPort(const std::string& host, int port) {
  return absl::StrContains(host, ":") ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<std::string> AddressTowards(const std::string& address) {
  const absl::StatusOr<HostAndPort> to = ParseHostAndPort(address, "the address");
  if (!to.ok()) return to.status();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(to->host.c_str(), absl::StrCat(to->port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("the host of ", address, " has no address (", gai_strerror(error), ")"));
  }
  const std::unique_ptr<addrinfo, FreeInfo> owner(list);
  std::string why;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own = {};
    socklen_t length = sizeof own;
    std::string found;
    // Of a datagram socket this only chooses the route.
    if (connect(fd, at->ai_addr, at->ai_addrlen) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
      why = std::strerror(errno);
    } else {
      found = TextOf(reinterpret_cast<const sockaddr*>(&own));
    }
    close(fd);
    if (!found.empty()) return found;
  }
  return absl::UnavailableError(
      absl::StrCat("no interface of this host reaches ", address, " (", why, ")"));
}

std::string UsualHost(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  for (const int family : {AF_INET, AF_INET6}) {
    char text[INET6_ADDRSTRLEN] = {};
    if (inet_pton(family, host.c_str(), bytes) == 1 &&
        inet_ntop(family, bytes, text, sizeof text) != nullptr) {
      return text;
    }
  }
  return host;
}

bool IsAnyAddress(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

std::string ReachableAddress(const std::string& address) {
  const absl::StatusOr<HostAndPort> given = ParseHostAndPort(address, "the address");
  if (!given.ok() || !IsAnyAddress(given->host)) return address;
  for (const char* elsewhere : kElsewhere) {
    const absl::StatusOr<std::string> own = AddressTowards(elsewhere);
    if (own.ok() && !IsLoopback(*own)) return JoinHostAndPort(*own, given->port);
  }
  for (const std::string& own : InterfaceAddresses()) {
    if (!IsLoopback(own)) return JoinHostAndPort(own, given->port);
  }
  return address;
}

std::string OwnHostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

std::vector<std::string> OwnHosts() {
  std::vector<std::string> hosts = InterfaceAddresses();
  for (const char* always : {"localhost", "127.0.0.1", "::1"}) hosts.emplace_back(always);
  hosts.push_back(OwnHostName());
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

}  // namespace espalier
