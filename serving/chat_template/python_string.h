// Strings by their characters, as Python has them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier::jinja {

int64_t Length(absl::string_view text);
// Where the n-th character begins; text.size() behind the last one.
size_t Offset(absl::string_view text, int64_t n);

bool IsPythonSpace(char32_t c);

// Where `piece` comes in `text`, from `from` on, and where it comes last; npos: nowhere. In linear
// time whatever they hold: std::string's functions take hours for what repeats itself.
size_t FindSubstring(absl::string_view text, absl::string_view piece, size_t from = 0);
size_t FindLastSubstring(absl::string_view text, absl::string_view piece);

// Without `characters` white space; else any of those.
std::string StripText(absl::string_view text, bool left, bool right, const std::string* characters);

std::string Upper(const std::string& text);
std::string Lower(const std::string& text);
std::string Capitalize(const std::string& text);
// Python's str.title(), and Jinja2's filter, for which words end at white space, - and brackets.
std::string Title(const std::string& text);
std::string FilterTitle(const std::string& text);

}  // namespace espalier::jinja
