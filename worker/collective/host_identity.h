// Which ranks run on one host.
#pragma once

#include <string>

namespace espalier {

// Processes with equal identities run under the same kernel, network namespace (which scopes
// abstract sockets) and user, and can share memory. Empty if it cannot be found out.
std::string HostIdentity();

}  // namespace espalier
