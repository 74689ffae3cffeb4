// HMAC-SHA256 (RFC 2104) by OpenSSL.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// Returns the 32 bytes of the code.
std::string HmacSha256(absl::string_view key, absl::string_view message);

}  // namespace espalier
