// String operations with Python's semantics, by code points.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier::jinja {

int64_t Length(absl::string_view text);
// Byte offset of the n-th character; text.size() if there are fewer.
size_t Offset(absl::string_view text, int64_t n);

bool IsPythonSpace(char32_t c);

// First occurrence of `piece` at or after `from`, and last occurrence; npos if there is none.
// Linear time even for repetitive texts, on which std::string's functions are quadratic.
size_t FindSubstring(absl::string_view text, absl::string_view piece, size_t from = 0);
size_t FindLastSubstring(absl::string_view text, absl::string_view piece);

// Strips any of `characters`, or white space if it is null.
std::string StripText(absl::string_view text, bool left, bool right, const std::string* characters);

std::string Upper(const std::string& text);
std::string Lower(const std::string& text);
std::string Capitalize(const std::string& text);
// Python's str.title(), and Jinja2's title filter, for which white space, - and brackets end words.
std::string Title(const std::string& text);
std::string FilterTitle(const std::string& text);

}  // namespace espalier::jinja
