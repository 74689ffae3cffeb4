// Addresses of this host.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct HostAndPort {
  std::string host;  // without brackets
  int port = 0;
};
// Reads "host:port" or "[v6]:port". Returns InvalidArgument that begins with `what`.
absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& text, const std::string& what);
// With brackets if the host is an IPv6 address.
std::string JoinHostAndPort(const std::string& host, int port);

// Returns the address of the interface that reaches `address` (host:port), found without sending
// anything. Unavailable if its host has no address, or if there is no way to it.
absl::StatusOr<std::string> AddressTowards(const std::string& address);

// An address in its usual form: "::1" for "0:0:0:0:0:0:0:1". A name stays what it is.
std::string UsualHost(const std::string& host);
// Whether a host stands for all addresses: "0.0.0.0", "::".
bool IsAnyAddress(const std::string& host);
// `address` (host:port) as other hosts may reach it: where its host stands for all addresses, that
// of the interface of the default route, or else of the first one. Unchanged if there is none.
std::string ReachableAddress(const std::string& address);

// The addresses of all interfaces of this host that are up, and its names, loopback included.
std::vector<std::string> OwnHosts();
std::string OwnHostName();

}  // namespace espalier
