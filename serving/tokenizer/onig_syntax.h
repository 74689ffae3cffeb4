// Translates Oniguruma's Ruby syntax to PCRE2's. They differ in details that move word boundaries:
// \s, \w, \h, \v and \b, the Unicode version, (?m), {2}+, and nested sets.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Returns a pattern for PCRE2 with UTF, UCP and MULTILINE. Returns Unimplemented if there is no
// translation, InvalidArgument if the pattern is malformed, both with the byte offset.
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

}  // namespace espalier
