// Codings of request bodies (RFC 9110, 8.4).
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "server/http/http_server.h"

namespace espalier {

// What the header Accept-Encoding of an answer 415 names.
inline constexpr char kContentCodings[] = "gzip";

// Returns Unimplemented, with a remedy, for a request with another Content-Encoding than gzip or
// identity. Needs no body.
absl::Status CheckContentCoding(const HttpRequest& header);

// Decodes the body in place, to at most `most_bytes`, and drops its Content-Encoding. Returns
// CheckContentCoding's errors, InvalidArgument for a malformed body and OutOfRange for one that is
// larger. Blocks for its decompression.
absl::Status DecodeBody(size_t most_bytes, HttpRequest* request);

}  // namespace espalier
