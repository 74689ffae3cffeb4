// Gets to know a coordinator whose CA is known only by its hash, before anything secret is said.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace espalier {

// Connects to `address` (host:port) by TLS and returns the certificate (PEM) of the CA that has
// signed the server's, with which further connections are verified. Returns Unavailable if nothing
// answers, or not by TLS; PermissionDenied if the certificates that it shows have another CA than
// the one whose public key has this SHA-256 (hexadecimal), or are not for this host: somebody may
// be in the middle.
absl::StatusOr<std::string> FetchPinnedCa(const std::string& address, const std::string& sha256,
                                          absl::Duration timeout);

}  // namespace espalier
