// Unguessable ids, used as handles: knowing an id gives access to what it names.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// Returns 32 hexadecimal digits. Returns Internal if the system has no random numbers.
absl::StatusOr<std::string> RandomId();

}  // namespace espalier
