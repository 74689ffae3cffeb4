// Finds the addresses of hosts by their names, without waiting longer than the caller can: a name
// server that does not answer holds up getaddrinfo for many seconds, for each name.
#pragma once

#include <netdb.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace espalier {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

struct HostPort {
  std::string host;  // name or address
  std::string port;  // digits
};

// Blocks. `flags` are those of getaddrinfo. Unavailable, naming the host, if that is not possible.
absl::StatusOr<Addresses> ResolveHost(const HostPort& wanted, int flags);

using Resolver = std::function<absl::StatusOr<Addresses>(const HostPort& wanted, int flags)>;

// Resolves all at the same time, each name on a thread of its own, which may outlive the call.
// Returns the results in order; DeadlineExceeded for those that are not there by the deadline.
std::vector<absl::StatusOr<Addresses>> ResolveHosts(const std::vector<HostPort>& wanted,
                                                    absl::Time deadline,
                                                    const Resolver& resolve = ResolveHost);

}  // namespace espalier
