// Ids that are handed out as handles: who knows one may act on what it names, so nobody can guess
// one.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// 32 hexadecimal digits. Internal if the system has no random numbers.
absl::StatusOr<std::string> RandomId();

}  // namespace espalier
