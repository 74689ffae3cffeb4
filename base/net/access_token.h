// The text of a token, which a worker or a person is given to get access to a coordinator:
// "esp1.ID." and, in URL-safe base64, the coordinator's addresses, the token's secret and the
// SHA-256 of the public key of the CA that has signed the coordinator's certificate. Whoever has
// the text knows which coordinator to trust, and nobody between them can be taken for it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

inline constexpr absl::string_view kAccessTokenPrefix = "esp1.";

struct AccessTokenText {
  std::string id;           // 12 hexadecimal digits
  std::string secret;       // 32 hexadecimal digits
  std::string ca_sha256;    // 64 hexadecimal digits; see PublicKeySha256 (x509.h)
  std::string coordinator;  // host:port of gRPC; of several coordinators, separated by commas
  std::string http;         // host:port; empty: not reachable for others
};

bool IsAccessToken(absl::string_view text);

std::string FormatAccessToken(const AccessTokenText& token);
// Returns InvalidArgument, without the secret, for a text that is none or that was cut off.
absl::StatusOr<AccessTokenText> ParseAccessToken(absl::string_view text);

}  // namespace espalier
