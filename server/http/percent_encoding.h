// Percent-encoding of paths (RFC 3986, 2.1).
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// Whether two hexadecimal digits follow each '%', and nothing encodes a control character.
bool IsPercentEncoded(absl::string_view path);

// Decodes a path except for %2F and %25: a slash within a segment stays apart from one between
// segments, and DecodeSegment can follow.
std::string NormalizePath(absl::string_view path);

// Decodes what NormalizePath left of one or more segments. Of text that was not normalized, it
// decodes %2F and %25 only.
std::string DecodeSegment(absl::string_view text);

}  // namespace espalier
