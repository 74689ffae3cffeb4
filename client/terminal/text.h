// UTF-8 text with terminal display widths.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// Returns the columns of `text` (UTF-8): 0 for combining marks, 2 for East Asian wide characters
// and emoji. Escape sequences of Style count 0.
int DisplayWidth(absl::string_view text);

// Makes untrusted text (names, prompts, error texts) safe to print: control characters, including
// escape sequences, and invalid UTF-8 become U+FFFD; newlines and tabs are kept if `keep_lines`,
// otherwise become spaces.
std::string Printable(absl::string_view text, bool keep_lines = false);

// Returns the length of the longest valid UTF-8 prefix of `text`, in bytes.
size_t ValidUtf8(absl::string_view text);

// Truncates to at most `width` columns; the last is an ellipsis if something was cut.
std::string Truncate(absl::string_view text, int width, bool unicode = true);
// The same in the middle, for names that differ at their ends.
std::string TruncateMiddle(absl::string_view text, int width, bool unicode = true);

enum class Align { kLeft, kRight, kCenter };
std::string Pad(absl::string_view text, int width, Align align);

// All digits that the value needs, without an exponent: "16777216", "0.00001", "inf".
std::string FormatNumber(double value);
// "1.5 MiB", "512 B".
std::string FormatBytes(double bytes);
// "4.26 M", "12.3 k", "87": counts and rates.
std::string FormatCount(double value);
// Three significant digits for short times, otherwise hours, minutes and seconds: "12.3 ms", "4.21
// s", "3m 07s", "2h 05m".
std::string FormatSeconds(double seconds, bool unicode = true);
// As many digits as a loss needs: "2.3041", "0.000412", "nan".
std::string FormatLoss(double value);

}  // namespace espalier
