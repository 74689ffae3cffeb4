// Oniguruma's Ruby syntax to PCRE2's. The two differ in small things that change where words end:
// what \s, \w, \h, \v and \b are, how old their Unicode is, what (?m) and {2}+ mean, sets in sets.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// A pattern for PCRE2 with UTF, UCP and MULTILINE. Unimplemented for what has no translation,
// InvalidArgument for what is no pattern, both with the byte.
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

}  // namespace espalier
