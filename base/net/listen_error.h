// Why a server cannot listen: gRPC says so only in its log.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace espalier {

// The error of a server that could not listen on `address` (host:port), with cause and remedy,
// found by trying the same again.
absl::Status CannotListen(const std::string& address);

}  // namespace espalier
