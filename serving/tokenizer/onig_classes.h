// Oniguruma's named character sets, as contents of a PCRE2 bracket expression.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier::onig {

// A general category of Unicode, such as "L" or "Lu".
std::string Category(absl::string_view name);

// \s.
std::string Space();

// \w inside bracket expressions, and outside (LooseWord), where Oniguruma uses a Latin-1 table with
// a few more characters.
std::string Word();
std::string LooseWord();

// A property by its Oniguruma name, ignoring case, spaces, hyphens and underscores.
std::optional<std::string> Property(absl::string_view written);

}  // namespace espalier::onig
