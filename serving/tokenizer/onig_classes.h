// Oniguruma's named sets of characters. Each is what stands between the brackets of a PCRE2 class.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier::onig {

// A general category of Unicode: "L", "Lu".
std::string Category(absl::string_view name);

// \s.
std::string Space();

// \w within sets, and outside of them: there Oniguruma asks a table of Latin-1, which has a few
// signs more.
std::string Word();
std::string LooseWord();

// A property by its Oniguruma name, without case, spaces, hyphens and underscores.
std::optional<std::string> Property(absl::string_view written);

}  // namespace espalier::onig
